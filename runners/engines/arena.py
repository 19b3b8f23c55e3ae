"""The memory pool of emulated graphs: blocks that are freed when their tensor dies and may then be reused.

Like a CUDA graph pool, it is shared by all graphs captured into it: a later capture may get memory that an
earlier graph uses only inside itself, so that replaying one graph may overwrite what another left behind.
"""

from __future__ import annotations

import bisect
import math
import weakref
from collections import deque
from collections.abc import Iterable

import numpy as np
import torch

ALIGNMENT = 512  # bytes, as in CUDA's caching allocator
CAPACITY = 1 << 30  # bytes of address space; only pages that are touched cost memory


class _Block(np.ndarray):
    """A slice of the arena. It exists to be weakly referenced: PyTorch holds it for as long as a storage lives."""


class Arena:
    """First-fit allocation over one stretch of memory."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        room = np.empty(capacity + ALIGNMENT, dtype=np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        self._bytes = room[start : start + capacity]
        self.base = self._bytes.ctypes.data
        self.capacity = capacity
        self._whole = torch.from_numpy(self._bytes)
        self._free: list[tuple[int, int]] = [(0, capacity)]  # (offset, size), rising, never adjacent
        self._dead: deque[tuple[int, int]] = deque()
        self.high_water = 0

    def allocate(self, like: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """A tensor in the arena with the sizes, strides and dtype of `like`, contents undefined, and its block
        (offset, size) in bytes. RuntimeError when the pool is full."""
        reach = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
        size = max(1, math.ceil(reach * like.element_size() / ALIGNMENT)) * ALIGNMENT
        while self._dead:
            self._give_back(*self._dead.pop())
        offset = self._take(size)
        # No longer than the tensor: what lies behind it, up to the next block, must not be read.
        block = self._bytes[offset : offset + max(1, reach) * like.element_size()].view(_Block)
        # Python may find a dead block at any time, in the middle of _take as well, so it is only noted here.
        weakref.finalize(block, self._dead.append, (offset, size)).atexit = False
        tensor = torch.from_numpy(block).view(like.dtype).as_strided(like.shape, like.stride())
        return tensor, (offset, size)

    def holds(self, tensor: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - self.base < self.capacity

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory under the same shape, without keeping its block alive: what a captured pointer is."""
        offset = (tensor.data_ptr() - self.base) // tensor.element_size()
        return self._whole.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), offset)

    def poison(self, offset: int, size: int) -> None:
        """All bits one: NaN as a float, -1 as an integer, True as a boolean."""
        self._bytes[offset : offset + size] = 0xFF

    def unused(self) -> list[tuple[int, int]]:
        """The stretches that no tensor has now, (offset, size)."""
        while self._dead:
            self._give_back(*self._dead.pop())
        return list(self._free)

    def _take(self, size: int) -> int:
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, room - size)
                self.high_water = max(self.high_water, offset + size)
                return offset
        raise RuntimeError(f"CUDA out of memory: the emulated graph pool of {self.capacity} bytes has no {size} left")

    def _give_back(self, offset: int, size: int) -> None:
        index = bisect.bisect(self._free, (offset, size))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            index -= 1
            offset, before = self._free.pop(index)
            size += before
        self._free.insert(index, (offset, size))


def merged(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks that touch or share memory, each a capture may have had several times, as the stretches that they make."""
    stretches: list[tuple[int, int]] = []
    for offset, size in sorted(blocks):
        first, before = stretches[-1] if stretches else (offset, 0)
        if stretches and offset <= first + before:
            stretches[-1] = (first, max(before, offset + size - first))
        else:
            stretches.append((offset, size))
    return stretches


def within(blocks: Iterable[tuple[int, int]], stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The blocks of which each lies in one of these stretches, merged."""
    rooms = [(first, first + size) for first, size in stretches]
    return merged((at, size) for at, size in blocks if any(first <= at and at + size <= end for first, end in rooms))
