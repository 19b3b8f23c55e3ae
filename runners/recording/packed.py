"""The layout of arrays one after the other in one stretch of bytes: arrays seen together are sent together.

A session sees the same arrays in the same order again and again, so everything that does not depend on their contents
is worked out once.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from repro.traces.trace import Array


class Entry(NamedTuple):
    """One array: its path and name in the trace, dtype in numpy's short text form, shape; and whether it is recorded,
    or only asked for."""

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    recorded: bool


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The arrays of one stretch. places: where each begins. size: bytes of all. runs: where those lie that are
    recorded. text: these as JSON, within a string of JSON: who has read it once knows it again."""

    places: dict[tuple[str, str], tuple[int, Entry]]
    size: int
    runs: tuple[slice, ...]
    text: str

    def recorded_bytes(self, data: bytes) -> bytes:
        """The bytes of what is recorded, one array behind the other."""
        return b"".join([data[run] for run in self.runs])

    def array(self, data: bytes, path: str, name: str) -> Array:
        """A view of one of them, read-only. KeyError if it is not there."""
        start, entry = self.places[path, name]
        return np.frombuffer(data, entry.dtype, math.prod(entry.shape), start).reshape(entry.shape)

    def recorded(self, data: bytes) -> Iterator[tuple[str, str, Array]]:
        """Path, name and contents of each that is recorded."""
        for (path, name), (_, entry) in self.places.items():
            if entry.recorded:
                yield path, name, self.array(data, path, name)


@functools.lru_cache(maxsize=4096)
def packed_layout(entries: tuple[Entry, ...]) -> PackedLayout:
    """The packed layout of these entries, whatever is in them."""
    sizes = [math.prod(entry.shape) * np.dtype(entry.dtype).itemsize for entry in entries]
    starts = [0, *itertools.accumulate(sizes)]
    announced = [[entry.path, entry.name, [entry.dtype, entry.shape]] for entry in entries if entry.recorded]
    return PackedLayout(
        places={(entry.path, entry.name): (start, entry) for start, entry in zip(starts, entries, strict=False)},
        size=starts[-1],
        runs=tuple(_runs(entries, starts)),
        text=json.dumps(json.dumps(announced, separators=(",", ":"))),
    )


def _runs(entries: tuple[Entry, ...], starts: list[int]) -> Iterator[slice]:
    """The stretches of neighbours that are recorded."""
    for recorded, group in itertools.groupby(range(len(entries)), key=lambda number: entries[number].recorded):
        numbers = list(group)
        if recorded:
            yield slice(starts[numbers[0]], starts[numbers[-1] + 1])
