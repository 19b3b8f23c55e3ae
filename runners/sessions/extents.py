"""The lengths of all tensors of a batch and the widths of their integers: as attention
meets them while graphs are captured, and as what plans is given them. Nothing is listed by name but what has its
tokens in the second dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from repro.cases.buffer_facts import GATHERED_ON_HOST, TOKENS_SECOND
from repro.traces.trace import Array

SPEC = "spec_info"
INTEGERS = (torch.int32, torch.int64)
# What a batch says of how many tokens it has; what has them in its second dimension has one for each, too.
COUNTS = ("extend_num_tokens", "num_token_non_padded_cpu")


class Extents:
    """The extents that attention met in captures. Mutable: each batch size and width once."""

    def __init__(self) -> None:
        self._met: dict[str, set[tuple[int, int]]] = {}
        self._sizes: set[tuple[int, int]] = set()
        self.widths: dict[str, int] = {}
        self.tokens: set[tuple[int, int]] = set()
        self.gathered: set[tuple[int, int]] = set()
        self.counts: dict[str, set[tuple[int, int]]] = {}
        self.ranks: dict[str, set[tuple[int, ...]]] = {}  # behind the batch's size what is said of each rank

    def note(self, batch: Any, tokens: int, counts: tuple[int, int]) -> None:
        """Look at the batch of a call of attention, if it is the first of its batch size and width. counts: how many
        tokens parallel layers are told that this rank has, and all."""
        size = int(batch.batch_size)
        if (size, tokens) not in self._sizes:
            self._sizes.add((size, tokens))
            for name, count in extents(vars(batch)).items():
                self._met.setdefault(name, set()).add((size, count))
            self.widths |= widths(vars(batch))
            for ranks, count in zip((self.tokens, self.gathered), counts, strict=True):
                ranks.add((tokens, count))
            for name, each in ranks_on_host(vars(batch)).items():
                self.ranks.setdefault(name, set()).add((size, *each))
            for name in (*COUNTS, *TOKENS_SECOND):
                value = getattr(batch, name, None)
                counted = value if isinstance(value, int) else _entries(name, value)
                if counted is not None:
                    self.counts.setdefault(name, set()).add((tokens, counted))

    @property
    def met(self) -> dict[str, Array]:
        """The extents by field: rows of a batch size and the entries that the field had."""
        return {name: np.array(sorted(pairs)) for name, pairs in self._met.items()}


def extents(fields: Mapping[str, Any]) -> dict[str, int]:
    """The length of each tensor and each list of numbers; what speculation adds is among them, with SPEC in front."""
    return {name: count for name, value in _every(fields) if (count := _entries(name, value)) is not None}


def ranks_on_host(fields: Mapping[str, Any]) -> dict[str, list[int]]:
    """The lists of a batch that say how many tokens each rank has."""
    return {name: value for name in GATHERED_ON_HOST if isinstance(value := fields.get(name), list)}


def widths(fields: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of an integer of each tensor of integers on a device."""
    return {
        name: value.dtype.itemsize
        for name, value in _every(fields)
        if isinstance(value, torch.Tensor) and value.ndim and value.dtype in INTEGERS
    }


def _every(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from fields.items()
    for name, value in getattr(fields.get(SPEC), "__dict__", {}).items():
        yield f"{SPEC}.{name}", value


def _entries(name: str, value: object) -> int | None:
    if isinstance(value, list):
        return len(value) if value and all(isinstance(entry, int) for entry in value) else None
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return None
    return value.shape[1] if name.rpartition(".")[2] in TOKENS_SECOND and value.ndim > 1 else value.shape[0]
