"""Loads and stores of a recorded launch: those that find nothing wrong, cheaply.

Where a lane leaves the arguments' views, or a program meets what another wrote, the launch is Unusual: its stores are
taken back and it is run as one that was never recorded, which then says what there is to find.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton.runtime import interpreter as triton_interpreter

from runners.engines import launch_memory, touched

# How long a stretch of stores may be, in elements, for each of them to be marked with the program that stored it.
_STRETCH = 1 << 20
_NOBODY = -1
# How many bytes for each lane are copied to load from.
_COPIED = 256


class Unusual(BaseException):
    """This launch cannot be run as it was recorded. No Exception: device functions of Triton's interpreter catch
    those."""


@dataclass(frozen=True, slots=True)
class _Access:
    """What one operation of some programs touched: elements of `size` bytes in [low, high). used: their addresses;
    shape, mask: of all lanes, with a row a program, or one row where all programs did the same."""

    low: int
    high: int
    size: int
    used: Any
    shape: tuple[int, ...]
    mask: Any
    programs: Any

    @property
    def by_all(self) -> bool:
        return self.shape[0] == 1 and len(self.programs) > 1

    def owners(self) -> Any:
        """Of each address, the program that touched it. Only where not all programs did."""
        owners = np.repeat(self.programs, self.used.size // len(self.programs) if self.mask is None else self._lanes)
        return owners if self.mask is None else owners[self.mask.reshape(-1)]

    @property
    def _lanes(self) -> int:
        return int(self.mask.size) // len(self.programs)


@dataclass(slots=True)
class Lanes:
    """The memory of a launch under way. Mutable: what it touches gathers. programs: of the group that runs just now."""

    spans: Sequence[launch_memory.Span]
    programs: Any = None
    _loads: list[_Access] = field(default_factory=list)
    _stores: list[_Access] = field(default_factory=list)
    _undo: list[tuple[int, bytes]] = field(default_factory=list)
    _notes: list[tuple[Any, Any, bool]] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int, int]:
        return len(self._loads), len(self._stores), len(self._undo), len(self._notes)

    def back_to(self, mark: tuple[int, int, int, int]) -> None:
        """Memory as it was at the mark."""
        loads, stores, undo, notes = mark
        for address, before in reversed(self._undo[undo:]):
            ctypes.memmove(address, before, len(before))
        del self._loads[loads:], self._stores[stores:], self._undo[undo:], self._notes[notes:]

    def touch(self, addresses: Any, mask: Any, size: int, *, writes: bool) -> _Access | None:
        """Note what these lanes touch; None if that is nothing. Unusual if it is not all within one argument's view."""
        if touched.noting is not None:
            self._notes.append((addresses, np.True_ if mask is None else mask, writes))
        used = addresses.reshape(-1) if mask is None else addresses[mask]
        if not used.size:
            return None
        low, high = int(used.min()), int(used.max()) + size
        for span in self.spans:
            if span.start <= low and high <= span.stop:
                break
        else:
            raise Unusual
        access = _Access(low, high, size, used, addresses.shape, mask, self.programs)
        (self._stores if writes else self._loads).append(access)
        return access

    def keep(self, store: _Access) -> None:
        """What lies where this is going to be stored, to be put back."""
        self._undo.append((store.low, ctypes.string_at(store.low, store.high - store.low)))

    def settle(self, programs: int) -> None:
        """All of so many programs have run. Unusual if one touched what another stored, or if there is but one, and
        two of its lanes stored to one place; else whoever listens is told."""
        for stretch in _stretches(self._stores):
            if programs > 1:
                _refuse_meeting(stretch, self._loads)
            else:
                for store in stretch:
                    _marks([store], [np.arange(store.used.size)], store.low, store.high)
        if touched.noting is not None:
            for addresses, mask, writes in self._notes:
                touched.noting.addressed(addresses, mask, writes=writes)


def _stretches(stores: list[_Access]) -> list[list[_Access]]:
    """Stores, those together whose places lie among each other's."""
    stretches: list[list[_Access]] = []
    end = 0
    for store in sorted(stores, key=lambda store: store.low):
        if stretches and store.low < end:
            stretches[-1].append(store)
            end = max(end, store.high)
        else:
            stretches.append([store])
            end = store.high
    return stretches


def _refuse_meeting(stores: list[_Access], loads: list[_Access]) -> None:
    """Unusual if a program touches what another stored."""
    low, high = stores[0].low, max(store.high for store in stores)
    meeting = [load for load in loads if load.low < high and low < load.high]
    if any(store.by_all for store in stores):
        # What they all store is the same, but what some of them read depends on who was first.
        if len(stores) > 1 or meeting:
            raise Unusual
        return
    marks = _marks(stores, [store.owners() for store in stores], low, high)
    for load in meeting:
        if load.size != stores[0].size:
            raise Unusual
        inside = (load.used >= np.uint64(low)) & (load.used < np.uint64(high))
        seen = marks[_places(load.used[inside], low, load.size)]
        if ((seen != _NOBODY) & (load.by_all or seen != load.owners()[inside])).any():
            raise Unusual


def _marks(stores: list[_Access], owners: list[Any], low: int, high: int) -> Any:
    """Of each element in [low, high), who stored it. Unusual if two did."""
    size = stores[0].size
    if any(store.size != size for store in stores) or high - low > _STRETCH * size:
        raise Unusual
    marks = np.full(-(-(high - low) // size), _NOBODY)
    places = [_places(store.used, low, size) for store in stores]
    for place, owner in zip(places, owners, strict=True):
        marks[place] = owner
    if any((marks[place] != owner).any() for place, owner in zip(places, owners, strict=True)):
        raise Unusual
    return marks


def _places(addresses: Any, low: int, size: int) -> Any:
    offsets = (addresses - np.uint64(low)).view(np.int64)
    if size == 1:
        return offsets
    if (offsets & (size - 1)).any():
        raise Unusual
    return offsets >> (size.bit_length() - 1)


# What is recorded of a kernel's loads and stores -----------------------------------------------------------------


def _whole(data: Any, shape: tuple[int, ...]) -> Any:
    if data.shape == shape:
        return data
    result = np.empty(shape, data.dtype)
    result[...] = data
    return result


def load(lanes: Lanes, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
    """mask, other: None where there is none."""
    shape = _common_shape(pointers, mask, other)
    addresses, allowed = _whole(pointers, shape), None if mask is None else _whole(mask, shape)
    access = lanes.touch(addresses, allowed, dtype.itemsize, writes=False)
    if access is None or access.high - access.low > _COPIED * addresses.size:
        every = np.ones(shape, np.bool_) if allowed is None else allowed
        result = np.zeros(shape, dtype) if other is None else _whole(other, shape)
        return triton_interpreter._interpreter.load(addresses, every, result, dtype)
    between = np.frombuffer(ctypes.string_at(access.low, access.high - access.low), dtype)
    # Lanes that are masked off may point anywhere.
    offsets = (addresses - np.uint64(access.low)).view(np.int64)
    result = between.take(offsets >> (access.size.bit_length() - 1) if access.size > 1 else offsets, mode="clip")
    if allowed is not None:
        np.copyto(result, result.dtype.type(0) if other is None else other, where=~allowed)
    return result


def store(lanes: Lanes, pointers: Any, values: Any, mask: Any) -> None:
    """mask: None where there is none."""
    shape = _common_shape(pointers, values, mask)
    addresses, values = _whole(pointers, shape), _whole(values, shape)
    allowed = None if mask is None else _whole(mask, shape)
    access = lanes.touch(addresses, allowed, values.itemsize, writes=True)
    if access is None:
        return
    lanes.keep(access)
    every = np.ones(shape, np.bool_) if allowed is None else allowed
    triton_interpreter._interpreter.store(addresses, values, every)


def _common_shape(first: Any, *others: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = first.shape
    shapes = [other.shape for other in others if other is not None]
    return shape if all(given == shape for given in shapes) else np.broadcast_shapes(shape, *shapes)
