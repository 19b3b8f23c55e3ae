"""What a reference is asked and what it answers: the batch as the harness made it, the KV cache before the call, and
the outputs and KV writes that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from runners.releases.reference.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """given: the batch under its names in the trace, one row a request, on the host, in the model's type where it is
    handed over in that. table: the KV slot of each token of each request slot. kv: the KV cache before the call, on
    the host: a tensor [kv slots, heads, size] for the keys and one for the values of each layer, in the order of
    Family.kv. claimed: the integers that the path gave on which an opinion is asked for, one row a request: choices
    that rounding can turn over are made as it made them."""

    setup: Setup
    requests: Sequence[Request]
    given: Mapping[str, torch.Tensor]
    table: Ints
    kv: Sequence[torch.Tensor]
    claimed: Mapping[str, torch.Tensor]
    by: Rounding

    def rows(self, tensor: int, slots: Ints) -> torch.Tensor:
        """What lies in these slots of one of the cache's tensors, float64 [n, heads, size]."""
        return self.kv[tensor][torch.from_numpy(slots)].to(torch.float64)

    def exact(self, name: str) -> torch.Tensor:
        """A part of the batch, as values."""
        return self.by.exact(self.given[name])


@dataclass(slots=True, kw_only=True)
class Answer:
    """floats: outputs as values [samples, requests, n, width]: n tokens of each request, or one. integers: outputs
    [requests, n], and whether the path can have made no other choice, bool of the same shape. slots: the KV slots that
    are written, and rows: what is written there, values [samples, slots, width]; sure: whether it is known of which
    token, bool [slots]. Mutable: filled on the way."""

    floats: dict[str, torch.Tensor] = field(default_factory=dict)
    integers: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    slots: list[Ints] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)
    sure: list[torch.Tensor] = field(default_factory=list)

    def wrote(self, slots: Ints, *layers: torch.Tensor, sure: torch.Tensor | None = None) -> None:
        """layers: [samples, slots, heads, size], one for each tensor of the cache."""
        self.slots.append(slots)
        self.sure.append(torch.ones(len(slots), dtype=torch.bool) if sure is None else sure)
        self.rows.append(torch.cat([layer.flatten(2) for layer in layers], dim=-1))


# Of one live sglang: the weights are read when it is made.
Reference = Callable[[Question], Answer]
