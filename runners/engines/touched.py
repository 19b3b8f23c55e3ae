"""The elements of some tensors that kernels read, before or after they wrote them, as an emulated launch runs.

Kernels in Triton's interpreter say it load by load, the stand-ins' operators row by row; of an ATen call its arguments
count as read whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
# What these change they do not look at.
_REPLACES = {_aten.copy_, _aten.fill_, _aten.zero_}
# Of these it is not known which elements they change; they look at none of them.
_SOMEWHERE = {_aten.index_put_, _aten.scatter_, _aten.index_copy_, _aten.index_fill_}


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of some elements, as numpy's bool. read: was read; stale: was read before this launch wrote it; written: by
    this launch."""

    read: Any
    stale: Any
    written: Any

    def at(self, places: Any) -> Marks:
        """The marks of a part, given by a slice or by a shape with strides: a view."""
        if isinstance(places, slice):
            return Marks(self.read[places], self.stale[places], self.written[places])
        return Marks(*(_strided(marks, *places) for marks in (self.read, self.stale, self.written)))

    def note(self, *, writes: bool) -> None:
        """All of these are read, or written."""
        if writes:
            self.written.fill(True)
        else:
            self.read.fill(True)
            np.greater_equal(self.stale, self.written, out=self.stale)  # or not written

    def note_at(self, places: Any, *, writes: bool) -> None:
        """Mark the elements at these indices."""
        if writes:
            self.written[places] = True
        else:
            self.read[places] = True
            self.stale[places] |= ~self.written[places]


class Region:
    """The memory of one tensor, element by element."""

    def __init__(self, tensor: torch.Tensor, marks: Marks) -> None:
        self.tensor, self.marks, self.size = tensor, marks, tensor.element_size()
        self.first = tensor.data_ptr()
        self.end = self.first + _reach(tensor) * self.size

    def of(self, marks: Any) -> torch.Tensor:
        """These marks in the tensor's shape."""
        return torch.from_numpy(marks).as_strided(self.tensor.shape, self.tensor.stride())

    def holds(self, tensor: torch.Tensor, first: int, last: int) -> bool:
        """True if all of another tensor, between these addresses, is elements of this one."""
        return self.first <= first and last < self.end and tensor.element_size() == self.size


class Touched:
    """The reads of these tensors. None of them is empty, and no two of them share memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        ends = list(accumulate(map(_reach, tensors.values()), initial=0))
        self._marks = Marks(*(np.zeros(ends[-1], dtype=np.bool_) for _ in range(3)))
        self.regions = {
            name: Region(tensor, self._marks.at(slice(start, end)))
            for (name, tensor), start, end in zip(tensors.items(), ends, ends[1:], strict=False)
        }
        self._sorted = sorted(self.regions.values(), key=lambda region: region.first)
        self._firsts = [region.first for region in self._sorted]
        self._ends = [region.end for region in self._sorted]
        # By a recorded call's arguments, which are the same at every replay: these, and what it touches of them.
        self._calls: dict[int, tuple[Any, list[tuple[Marks, bool]]]] = {}

    def begin(self) -> None:
        """Another launch begins; what was read stays so."""
        self._marks.stale.fill(False)
        self._marks.written.fill(False)

    def forget(self) -> None:
        """Nothing was read."""
        self.begin()
        self._marks.read.fill(False)

    def read(self, name: str) -> torch.Tensor:
        """The elements of this tensor that were read: bool, of its shape."""
        return self.regions[name].of(self.regions[name].marks.read)

    def stale(self, name: str) -> torch.Tensor:
        """The elements that this launch read before it wrote them."""
        return self.regions[name].of(self.regions[name].marks.stale)

    def addressed(self, addresses: Any, mask: Any, *, writes: bool) -> None:
        """A kernel's lanes touch these addresses, where the mask is true."""
        used = addresses[np.broadcast_to(mask, addresses.shape).astype(np.bool_)]
        if used.size:
            self.used(used, int(used.min()), int(used.max()), writes=writes)

    def used(self, addresses: Any, low: int, high: int, *, writes: bool) -> None:
        """A kernel touches these addresses, of which the first and the last are given."""
        for region in self._between(low, high):
            inside = addresses
            if low < region.first or high >= region.end:
                inside = addresses[(addresses >= np.uint64(region.first)) & (addresses < np.uint64(region.end))]
            places = (inside - np.uint64(region.first)).view(np.int64) >> (region.size.bit_length() - 1)
            region.marks.note_at(places, writes=writes)

    def given(self, tensor: torch.Tensor, *, writes: bool) -> None:
        """A call takes this tensor, and touches all of it."""
        for marks in self._within(tensor, writes=writes):
            marks.note(writes=writes)

    def rows(self, table: torch.Tensor, rows: torch.Tensor) -> None:
        """A call reads these rows of a table, which is contiguous or the same columns of one that is."""
        first, size, width = table.data_ptr(), table.stride(0), table[0].numel()
        last = first + (_reach(table) - 1) * table.element_size()
        between = self._between(first, last)
        if len(between) == 1 and between[0].holds(table, first, last):
            region = between[0]
            start = (first - region.first) // region.size
            region.marks.at((start, (len(table), width), (size, 1))).note_at(rows.reshape(-1).numpy(), writes=False)
        elif between:
            starts = np.uint64(first) + rows.reshape(-1, 1).numpy().astype(np.uint64) * np.uint64(
                size * table.element_size()
            )
            inside = np.arange(0, width * table.element_size(), table.element_size(), dtype=np.uint64)
            self.addressed(starts + inside, np.True_, writes=False)

    def called(self, function: Any, arguments: Any) -> None:
        """A recorded ATen call."""
        if function.namespace == "eagleeye":
            return  # a stand-in's own, which says what it reads
        known = self._calls.get(id(arguments))
        if known is None:
            known = self._calls[id(arguments)] = (arguments, list(self._by_call(function, *arguments)))
        for marks, writes in known[1]:
            marks.note(writes=writes)

    def _by_call(self, function: Any, args: Any, kwargs: Any) -> Iterator[tuple[Marks, bool]]:
        """The marks that a call touches; True: it writes there."""
        changed = {
            id(leaf)
            for argument, value in zip(function._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for leaf in tree_leaves(value)
        }
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        packet = function.overloadpacket
        for tensor in tensors:
            if id(tensor) not in changed or packet not in _REPLACES | _SOMEWHERE:
                yield from ((marks, False) for marks in self._within(tensor, writes=False))
        for tensor in tensors:
            if id(tensor) in changed and packet not in _SOMEWHERE:
                yield from ((marks, True) for marks in self._within(tensor, writes=True))

    def _within(self, tensor: torch.Tensor, *, writes: bool) -> Iterator[Marks]:
        """The marks of each region that a call with this tensor touches."""
        if not tensor.numel():
            return
        first, size = tensor.data_ptr(), tensor.element_size()
        last = first + (_reach(tensor) - 1) * size
        for region in self._between(first, last):
            if region.holds(tensor, first, last):
                start = (first - region.first) // region.size
                if tensor.is_contiguous():
                    yield region.marks.at(slice(start, start + tensor.numel()))
                else:
                    strides = tensor.stride()
                    shape = [1 if not step else n for n, step in zip(tensor.shape, strides, strict=True)]
                    yield region.marks.at((start, shape, strides))
            elif not writes:  # in another form: any of it
                low, high = max(first, region.first), min(last + size, region.end)
                yield region.marks.at(
                    slice((low - region.first) // region.size, -(-(high - region.first) // region.size))
                )

    def _between(self, first: int, last: int) -> list[Region]:
        """The regions with memory between these two addresses."""
        return self._sorted[bisect_right(self._ends, first) : bisect_right(self._firsts, last)]


def _reach(tensor: torch.Tensor) -> int:
    """The number of elements between its first and the end of its last."""
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _strided(marks: Any, start: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """marks: one byte an element."""
    return np.lib.stride_tricks.as_strided(marks[start:], shape, strides)


# The listener, and the same during a replay: kernels between two replays belong to no launch.
_listener: Touched | None = None
noting: Touched | None = None


@contextmanager
def noted(by: Touched) -> Iterator[None]:
    """While entered, `by` notes the memory that replays touch."""
    global _listener
    before, _listener = _listener, by
    try:
        yield
    finally:
        _listener = before


@contextmanager
def replayed() -> Iterator[None]:
    """While entered, a replay is under way."""
    global noting
    noting = _listener
    try:
        yield
    finally:
        noting = None


@contextmanager
def noted_at_once(by: Touched) -> Iterator[None]:
    """While entered, `by` notes the memory that kernels touch in a pass without a graph, as of one launch."""
    with noted(by), replayed():
        yield


def reads(*tensors: torch.Tensor | None) -> None:
    """A stand-in's operator reads all of these."""
    for tensor in tensors:
        if tensor is not None and noting is not None:
            noting.given(tensor, writes=False)


def reads_rows(table: torch.Tensor, rows: torch.Tensor) -> None:
    """A stand-in's operator reads these rows of a table, as Touched.rows has it."""
    if noting is not None and rows.numel():
        noting.rows(table, rows)
