"""KV slots of sliding layers, seen as the full layers' slots of the same tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from runners.releases.options import algorithms, sliding
from tests.builders.cases import setup_of

pytestmark = pytest.mark.emulated

PAGE, TOKENS, LARGEST = 4, 24, 40


def test_slots_are_mapped_back_by_the_pools_own_mapping() -> None:
    pool = SimpleNamespace(
        page_size=PAGE,
        full_to_swa_index_mapping=torch.cat((torch.zeros(LARGEST, dtype=torch.int64), torch.tensor([-1]))),
        swa_kv_pool=SimpleNamespace(k_buffer=[torch.zeros(LARGEST + PAGE, 1)]),
    )
    sliding.shift(pool, TOKENS)
    slots = torch.arange(LARGEST + PAGE, dtype=torch.int32)
    full = sliding.as_full(slots, pool)
    of_tokens = (slots >= 2 * PAGE) & (slots < TOKENS + PAGE)
    assert full[of_tokens].tolist() == list(range(PAGE, TOKENS))
    assert full[~of_tokens].tolist() == [0] + [-1] * int((~of_tokens).sum() - 1)
    assert sliding.as_full(torch.tensor([-1, 99, 0]), pool).tolist() == [-1, -1, 0]


@pytest.mark.parametrize("runner", ["verify", "round"])
def test_each_layer_of_a_target_that_eagle3_drafts_for_has_its_kind(runner: str) -> None:
    target, _ = algorithms.verifying(setup_of(runner, algorithm="EAGLE3", window=7, swa=True))
    kinds = target["hybrid_layer_pattern"]
    assert len(kinds) == target["num_hidden_layers"] > 2
    assert kinds == [1, 0] * (len(kinds) // 2) + [1] * (len(kinds) % 2)
