"""What each query reads, by the harness's own model of which KV slots a request owns; and what is written there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from repro.cases.layout import Ints
from runners.releases.reference import operations as op
from runners.releases.reference.llama import Attend, Heads
from runners.releases.reference.question import Answer, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One request's tokens of a call, [n] of them. old: the KV slots of the tokens before them, in their order. own:
    the slots of the call's tokens. positions: of the call's tokens. sees: which of the call's tokens each of them
    attends to, bool [n, n]."""

    old: Ints
    own: Ints
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


def attending(question: Question, answer: Answer, reads: Sequence[Read], layer: int = 0, layers: int = 1) -> Attend:
    """Attention of one layer of so many over these requests' tokens, one request after the other; the answer gets what
    it writes, where that is all that a slot holds."""

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads) -> torch.Tensor:
        found, start = [], 0
        for read in reads:
            own = slice(start, start + len(read.own))
            start = own.stop
            seen = op.Seen(
                keys=question.rows(layer, read.old),
                values=question.rows(layers + layer, read.old),
                new_keys=keys[:, own],
                new_values=values[:, own],
                mask=visible(len(read.old), read.positions, read.positions, read.sees, heads.window),
            )
            found.append(op.attention(question.by, queries[:, own], seen, heads.scaling, heads.logit_cap))
            answer.wrote(read.own, keys[:, own], values[:, own])
        return torch.cat(found, dim=1)

    return attend
