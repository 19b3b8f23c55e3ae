"""What sglang's function of drafts is called with before a worker forks."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

from runners.releases import traced

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


def test_every_call_fits_a_function_of_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(select_top_k_tokens=torch.compile(chosen, backend="eager"))
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    calls = traced.ahead()
    assert {function for function, _ in calls} == {chosen}, "as it was written, not as it is compiled"
    kinds = set()
    for function, arguments in calls:
        tokens, hidden, _ = function(*arguments)
        step, *_, scores, topk = arguments
        assert tokens.shape[0] == hidden.shape[0] == scores.numel()
        kinds.add((step, scores.shape[0], topk, scores.storage_offset() > 0))
    assert len(kinds) == len(calls) == 8


def test_a_release_without_it_has_nothing_to_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: types.SimpleNamespace())
    assert traced.ahead() == []
