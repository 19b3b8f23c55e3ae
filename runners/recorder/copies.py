"""Lengths that are on a device alone, copied into pinned memory without a wait, and read once they have come."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from . import ring

# Calls that a copy is left alone for, and copies at a time: a scheduler waits for its device once in every few calls.
_SETTLED, _ROOM = 16, 64
_ABSENT = -1


class Copies:
    """Copies under way. Mutable."""

    def __init__(self) -> None:
        self._pinned: Any = None
        self._under_way: deque[tuple[int, int]] = deque()

    def begin(self, call: int, lengths: Any, count: int) -> None:
        """Copy the lengths of a call, a tensor of a device with `count` numbers or more."""
        if self._pinned is None:
            torch: Any = sys.modules["torch"]
            try:
                self._pinned = torch.full((_ROOM, ring.ROWS), _ABSENT, dtype=lengths.dtype, pin_memory=True)
            except RuntimeError:  # a device whose PyTorch pins no memory
                self._pinned = ()
        if not len(self._pinned):
            return
        count = min(count, ring.ROWS)
        row = self._pinned[call % _ROOM][:count]
        row.fill_(_ABSENT)
        row.copy_(lengths[:count], non_blocking=True)
        self._under_way.append((call, count))

    def settle(self, calls: ring.Ring, all_of_them: bool = False) -> None:
        """Put what has come into its calls. all_of_them: also what was begun just now; what has not come is left."""
        newest = self._under_way[-1][0] if self._under_way else 0
        while self._under_way and (all_of_them or newest - self._under_way[0][0] >= _SETTLED):
            call, count = self._under_way.popleft()
            values = self._pinned[call % _ROOM][:count].tolist()
            if _ABSENT not in values:
                calls.amend(call, values)
