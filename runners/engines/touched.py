"""Which elements of some tensors kernels read, whether before or after they wrote them, as an emulated launch runs.

Kernels in Triton's interpreter say it load by load, the stand-ins' operators row by row; of an ATen call its arguments
count as read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
# What these change they do not look at.
_REPLACES = {_aten.copy_, _aten.fill_, _aten.zero_}
# Of these it is not known which elements they change; they look at none of them.
_SOMEWHERE = {_aten.index_put_, _aten.scatter_, _aten.index_copy_, _aten.index_fill_}


class Region:
    """The memory of one tensor, element by element. stale: was read before this launch wrote it. read: was read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.size = tensor, tensor.element_size()
        reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        self.first = tensor.data_ptr()
        self.end = self.first + reach * self.size
        self.stale, self.read, self.written = (torch.zeros(reach, dtype=torch.bool) for _ in range(3))

    def of(self, marks: torch.Tensor) -> torch.Tensor:
        """These marks in the tensor's shape."""
        return marks.as_strided(self.tensor.shape, self.tensor.stride())

    def begin(self) -> None:
        """Another launch begins; what was read stays so."""
        self.stale.zero_()
        self.written.zero_()

    def note(self, places: Any, *, writes: bool) -> None:
        """places: indices of elements, or a function of the marks that gives a view of them."""
        if writes:
            self.written[places] = True
            return
        self.read[places] = True
        self.stale[places] |= ~self.written[places]


class Touched:
    """What is read of these tensors. None of them is empty, and no two of them share memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.regions = {name: Region(tensor) for name, tensor in tensors.items()}
        self._sorted = sorted(self.regions.values(), key=lambda region: region.first)
        self._firsts = np.array([region.first for region in self._sorted], dtype=np.uint64)
        self._ends = np.array([region.end for region in self._sorted], dtype=np.uint64)

    def begin(self) -> None:
        """Another launch begins."""
        for region in self._sorted:
            region.begin()

    def forget(self) -> None:
        """Nothing was read."""
        for region in self._sorted:
            region.begin()
            region.read.zero_()

    def read(self, name: str) -> torch.Tensor:
        """Which elements of this tensor were read: bool, of its shape."""
        return self.regions[name].of(self.regions[name].read)

    def stale(self, name: str) -> torch.Tensor:
        """Which of them this launch read before it wrote them."""
        return self.regions[name].of(self.regions[name].stale)

    def addressed(self, addresses: Any, mask: Any, *, writes: bool) -> None:
        """A kernel's lanes touch these addresses, where the mask is true."""
        used = addresses[np.broadcast_to(mask, addresses.shape).astype(np.bool_)]
        if not used.size:
            return
        low, high = used.min(), used.max()
        start = int(np.searchsorted(self._ends, low, side="right"))
        for region in self._sorted[start : int(np.searchsorted(self._firsts, high, side="right"))]:
            inside = used
            if low < region.first or high >= region.end:
                inside = used[(used >= np.uint64(region.first)) & (used < np.uint64(region.end))]
            places = (inside - np.uint64(region.first)) // np.uint64(region.size)
            region.note(torch.from_numpy(places.astype(np.int64)), writes=writes)

    def given(self, tensor: torch.Tensor, *, writes: bool) -> None:
        """A call takes this tensor, and touches all of it."""
        if not tensor.numel():
            return
        first = tensor.data_ptr()
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        last = first + reach * tensor.element_size()
        start = int(np.searchsorted(self._ends, np.uint64(first), side="right"))
        for region in self._sorted[start : int(np.searchsorted(self._firsts, np.uint64(last), side="right"))]:
            if tensor.element_size() == region.size and region.first <= first and last < region.end:
                numbers = torch.arange(region.stale.numel())
                sizes = [1 if not step else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
                own = numbers.as_strided(sizes, tensor.stride(), (first - region.first) // region.size)
                region.note(own.reshape(-1), writes=writes)
            elif not writes:  # in another form: any of it
                low, high = max(first, region.first), min(last + tensor.element_size(), region.end)
                numbers = torch.arange((low - region.first) // region.size, -(-(high - region.first) // region.size))
                region.note(numbers, writes=False)

    def called(self, function: Any, arguments: Any) -> None:
        """An ATen call."""
        if function.namespace == "eagleeye":
            return  # a stand-in's own, which says what it reads
        args, kwargs = arguments
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
                self.given(tensor, writes=False)
        for tensor in tensors:
            if id(tensor) in changed and packet not in _SOMEWHERE:
                self.given(tensor, writes=True)


# Who wants to know, and who is told just now: what kernels do between two replays is no launch's.
_listener: Touched | None = None
noting: Touched | None = None


@contextmanager
def noted(by: Touched) -> Iterator[None]:
    """While entered, `by` is told what replays touch."""
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


def reads(*tensors: torch.Tensor | None) -> None:
    """A stand-in's operator reads all of these."""
    for tensor in tensors:
        if tensor is not None and noting is not None:
            noting.given(tensor, writes=False)


def reads_rows(table: torch.Tensor, rows: torch.Tensor) -> None:
    """A stand-in's operator reads these rows of a contiguous table."""
    if noting is None or not rows.numel():
        return
    size = table.stride(0) * table.element_size()
    starts = table.data_ptr() + rows.reshape(-1, 1).numpy().astype(np.uint64) * np.uint64(size)
    inside = np.arange(0, size, table.element_size(), dtype=np.uint64)
    noting.addressed(starts + inside, np.True_, writes=False)
