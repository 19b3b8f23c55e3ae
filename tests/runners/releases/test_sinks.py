"""gpt-oss over FlashAttention 3, and targets that give EAGLE3's draft model the hidden states of several layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from repro.cases.case import Case, Target
from repro.cases.families import GPT_OSS, fitted
from repro.cases.release_list import NEWEST
from repro.traces.trace import Trace
from repro.upstream.edits import Edit
from runners.engines.standins.dense import attention
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.cases import PAIR, SINGLE, case_of, failures, setup_of

pytestmark = pytest.mark.emulated

TARGET = Target(NEWEST, "emulated")
DECODE = case_of(fitted(setup_of("decode", "fa3", capture_bs=(2,), family=GPT_OSS)), PAIR, SINGLE)
VERIFY = case_of(setup_of("verify", "fa3", capture_bs=(2,), algorithm="EAGLE3"), PAIR, SINGLE)
WITHOUT_SINKS = Edit(
    file="sglang/srt/layers/attention/flashattention_backend.py",
    function="FlashAttentionBackend.forward_decode",
    old='kwargs["sinks"] = sinks',
    new="pass",
)
# The hidden states of the later layer in front of the earlier one's.
REVERSED = Edit(
    file="sglang/srt/layers/aux_hidden_states.py",
    function="AuxHiddenStateList.capture",
    old="self.append(hidden if owned else hidden.clone())",
    new="self.insert(0, hidden if owned else hidden.clone())",
)


def test_a_sink_is_one_more_key_that_has_no_value() -> None:
    """Four heads share two heads of keys; the second query sees one key, the third none."""
    random = torch.Generator().manual_seed(1)
    query, sinks = torch.randn(3, 4, 8, generator=random), torch.randn(4, generator=random)
    key, value = (torch.randn(5, 2, 8, generator=random) for _ in range(2))
    seen = torch.tensor([[True] * 5, [True] + [False] * 4, [False] * 5])
    out, logs = attention(query, key, value, seen, scale=0.5, soft_cap=0.0, sinks=sinks)
    scores = torch.einsum("nhd,mhd->nhm", query, key.repeat_interleave(2, 1)) * 0.5
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    whole = torch.cat((scores, sinks.view(1, 4, 1).expand(3, 4, 1)), dim=-1)
    right = torch.einsum("nhm,mhd->nhd", whole.softmax(-1)[..., :5], value.repeat_interleave(2, 1))
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(logs[:2], whole.logsumexp(-1)[:2])


def planted(edit: Edit, case: Case, folder: Path) -> set[str]:
    """The oracles that fail where this is changed."""
    path = make_overlay(sglang_path(TARGET), Overlay(release=NEWEST, change="planted"), [edit], folder)
    with Pool(Target(str(path), "emulated"), timeout_s=120, log=folder / "log") as pool:
        return set(failures(case, pool.run(case)))


@pytest.fixture(scope="module")
def traces(newest_worker: Pool) -> dict[Case, Trace]:
    return {case: newest_worker.run(case) for case in (DECODE, VERIFY)}


@pytest.mark.emulated(NEWEST)
@pytest.mark.exhaustive
@pytest.mark.parametrize(("edit", "case"), [(WITHOUT_SINKS, DECODE), (REVERSED, VERIFY)], ids=["sinks", "states"])
def test_what_both_paths_have_wrong_is_seen(edit: Edit, case: Case, traces: dict[Case, Trace], tmp_path: Path) -> None:
    assert not failures(case, traces[case])
    assert planted(edit, case, tmp_path) == {"reference"}


@pytest.mark.emulated(NEWEST)
def test_the_states_of_two_layers_lie_side_by_side(traces: dict[Case, Trace]) -> None:
    hidden = traces[VERIFY].path(0, "graph")["hidden_states"]
    assert hidden.reshape(len(PAIR), VERIFY.setup.num_draft_tokens, -1).shape[-1] == 2 * VERIFY.setup.hidden_size


def test_sliding_layers_bring_a_window_and_a_pool_of_their_own() -> None:
    setup = DECODE.setup
    assert setup.swa and setup.window
    assert fitted(replace(setup, window=0, swa=False)) == setup
