"""The question to a reference and its answer: the batch as the harness made it, the KV cache before the call, and
the outputs and KV writes that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
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
        """The contents of these slots of one of the cache's tensors, float64 [n, heads, size]."""
        return self.kv[tensor][torch.from_numpy(slots)].to(torch.float64)

    def exact(self, name: str) -> torch.Tensor:
        """A part of the batch, as values."""
        return self.by.exact(self.given[name])


def given_positions(question: Question, counted: torch.Tensor) -> torch.Tensor:
    """The positions of a call's first tokens, [tokens, axes], where the batch says them in three dimensions; else
    counted by the tokens before them, [tokens]."""
    positions = question.given.get("mrope_positions")
    return counted if positions is None else positions.reshape(len(counted), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """The cache's tensors that hold a layer's keys and values. values: None where they are the first part of each
    key, as in latent attention."""

    keys: int = 0
    values: int | None = 1

    def behind(self, tensors: int) -> Cached:
        """The same where so many tensors of other layers come first."""
        return Cached(keys=self.keys + tensors, values=None if self.values is None else self.values + tensors)

    def rows(self, question: Question, slots: Ints, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that lie in these slots, float64 [n, heads, size]. size: of a value."""
        keys = question.rows(self.keys, slots)
        return keys, keys[..., :size] if self.values is None else question.rows(self.values, slots)

    def written(self, keys: torch.Tensor, values: torch.Tensor) -> dict[int, torch.Tensor]:
        """The written values of each tensor, as Write has them."""
        return {self.keys: keys} | ({} if self.values is None else {self.values: values})


# Of a model of one layer.
ALONE = Cached()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The values that a call writes into KV slots. rows: by the number of the cache's tensor, values [samples, slots,
    heads, size]. known: whether it is known of which token, bool [slots]."""

    slots: Ints
    rows: Mapping[int, torch.Tensor]
    known: torch.Tensor


@dataclass(slots=True, kw_only=True)
class Answer:
    """floats: outputs as values [samples, requests, n, width]: n tokens of each request, or one. known: of which
    requests they are, bool [requests]; of all where an output is not named. integers: outputs [requests, n], and
    whether the path can have made no other choice, bool of the same shape. writes: in their order. Mutable: filled
    on the way."""

    floats: dict[str, torch.Tensor] = field(default_factory=dict)
    known: dict[str, torch.Tensor] = field(default_factory=dict)
    integers: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)

    def wrote(self, slots: Ints, rows: Mapping[int, torch.Tensor], known: torch.Tensor | None = None) -> None:
        """known: all, where it is not given."""
        self.writes.append(
            Write(slots=slots, rows=rows, known=torch.ones(len(slots), dtype=torch.bool) if known is None else known)
        )

    def left(self, question: Question) -> tuple[Ints, torch.Tensor, torch.Tensor]:
        """All slots that are written, rising, without those that belong to no request; what lies there afterwards,
        values [samples, slots, width] over all tensors of the cache; and whether it is known, bool [slots]."""
        slots = np.unique(np.concatenate([write.slots for write in self.writes]))
        slots = slots[slots >= question.setup.page_size]
        rows_by_tensor = [question.rows(tensor, slots).flatten(1) for tensor in range(len(question.kv))]
        ends = np.cumsum([rows.shape[1] for rows in rows_by_tensor])
        values = question.by.exact(torch.cat(rows_by_tensor, dim=1)).clone()
        known = torch.ones(len(slots), dtype=torch.bool)
        for write in self.writes:
            unreserved = np.flatnonzero(write.slots >= question.setup.page_size)
            places = torch.from_numpy(np.searchsorted(slots, write.slots[unreserved]))
            for tensor, rows in write.rows.items():
                columns = slice(int(ends[tensor]) - rows_by_tensor[tensor].shape[1], int(ends[tensor]))
                values[:, places, columns] = rows[:, unreserved].flatten(2)
            known[places] &= write.known[unreserved]
        return slots, values, known


# Of one live sglang: the weights are read when it is made.
Reference = Callable[[Question], Answer]
