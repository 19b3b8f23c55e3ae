"""The arguments of sglang's function of drafts before a worker forks."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

from runners.releases.starting import traced

pytestmark = pytest.mark.emulated


def chosen(
    i: int, topk_p: torch.Tensor, topk_index: torch.Tensor, hidden: torch.Tensor, scores: torch.Tensor, topk: int
) -> Any:
    """A function of these shapes: the best continuations of each row, their tokens and hidden states."""
    sums = (scores.unsqueeze(2) * topk_p.view(-1, topk, topk)).flatten(start_dim=1)
    best = torch.topk(sums, topk, dim=-1).indices
    tokens = torch.gather(topk_index.view(-1, topk * topk), 1, best).flatten()
    rows = best.flatten() // topk + torch.arange(0, hidden.shape[0], step=topk).repeat_interleave(topk)
    return tokens, hidden[rows], i


def whole(i: int, topk_p: Any, topk_index: Any, hidden: Any, scores: Any, topk: int) -> Any:
    """The same with the first step, which begins with what the target gave."""
    if i:
        return chosen(i, topk_p, topk_index, hidden, scores, topk)
    return topk_index.flatten(), hidden.repeat_interleave(topk, dim=0), i


@pytest.mark.parametrize(
    ("module", "function", "steps"),
    [
        (types.SimpleNamespace(select_top_k_tokens=whole), whole, {0, 1}),
        (types.SimpleNamespace(select_top_k_tokens=whole, _select_top_k_tokens_later=chosen), chosen, {1}),
    ],
)
def test_every_call_fits_a_function_of_branches(
    module: types.SimpleNamespace, function: Any, steps: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    calls = traced.ahead(lambda shape, dtype: torch.ones(shape, dtype=dtype))
    assert {called for called, _ in calls} == {function}
    kinds = set()
    for called, arguments in calls:
        tokens, hidden, _ = called(*arguments)
        step, chances, *_, topk = arguments
        assert tokens.shape[0] == hidden.shape[0]
        kinds.add((step, chances.shape, topk, hidden.dtype))
    assert {step for step, *_ in kinds} == steps
    assert len(kinds) == len(calls) == 12 * len(steps)


def test_a_release_without_it_has_nothing_to_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: types.SimpleNamespace())
    assert traced.ahead(lambda shape, dtype: torch.ones(shape, dtype=dtype)) == []
