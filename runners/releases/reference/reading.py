"""The reads of each query, by the harness's own model of which KV slots a request owns; and the writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from repro.cases.layout import Ints
from runners.releases.reference import operations as op
from runners.releases.reference.llama import Attend, Scores
from runners.releases.reference.question import Answer, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One request's tokens of a call, [n] of them. old: the KV slots of the tokens before them, in their order. new:
    the slots of the call's tokens. positions: of the call's tokens. sees: which of the call's tokens each of them
    attends to, bool [n, n]."""

    old: Ints
    new: Ints
    positions: torch.Tensor
    sees: torch.Tensor


def visible(
    old: int, positions: torch.Tensor, new_positions: torch.Tensor, sees: torch.Tensor, window: int
) -> torch.Tensor:
    """Bool [queries, old + new]: every old token, at positions 0, 1, ..., and of the new ones those in `sees`, within
    the window where there is one."""
    mask = torch.cat((torch.ones(len(positions), old, dtype=torch.bool), sees), dim=1)
    if window < 0:
        return mask
    keys = torch.cat((torch.arange(old), new_positions))
    return mask & (positions[:, None] - keys[None] <= window)


def attending(
    question: Question,
    answer: Answer,
    reads: Sequence[Read],
    *,
    tensors_before: int = 0,
    known: torch.Tensor | None = None,
) -> Attend:
    """Attention over these requests' tokens, one request after the other; the answer gets what it writes.
    tensors_before: how many of the cache's are other layers'. known: of which requests it is known what is right, bool
    [requests]; all where it is not given."""

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores) -> torch.Tensor:
        cached = scores.cached.behind(tensors_before)
        outputs, start = [], 0
        for row, read in enumerate(reads):
            span = slice(start, start + len(read.new))
            start = span.stop
            old_keys, old_values = cached.rows(question, read.old, values.shape[-1])
            seen = op.Attended(
                keys=old_keys,
                values=old_values,
                new_keys=keys[:, span],
                new_values=values[:, span],
                mask=visible(len(read.old), read.positions, read.positions, read.sees, scores.window),
            )
            outputs.append(
                op.attention(question.by, queries[:, span], seen, scores.scaling, scores.logit_cap, scores.sinks)
            )
            rows = cached.written(keys[:, span], values[:, span])
            answer.wrote(read.new, rows, None if known is None else known[row].expand(len(read.new)))
        return torch.cat(outputs, dim=1)

    return attend
