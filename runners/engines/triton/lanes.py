"""Loads and stores of a recorded launch: those that find nothing wrong, cheaply.

Where a lane leaves the arguments' views, or a program meets what another wrote, the launch is Unusual: its stores are
taken back and it is run as one that was never recorded, which then says what there is to find.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
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
# Without what numpy's methods of an array do around these.
_least, _most = np.minimum.reduce, np.maximum.reduce


class Unusual(BaseException):
    """This launch cannot be run as it was recorded. No Exception: device functions of Triton's interpreter catch
    those."""


class _Once:
    """A property that is worked out once. functools.cached_property takes a lock for it, which takes longer than most
    of these do."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._name = function, function.__name__

    def __get__(self, instance: Any, owner: type) -> Any:
        value = instance.__dict__[self._name] = self._function(instance)
        return value


@dataclass(frozen=True)
class Access:
    """The addresses of one operation's lanes, a row for each program, or one row where all programs do the same. mask:
    those that are used, None if all are. used: their addresses, of elements of `size` bytes in [low, high), empty if
    there are none. argument: what the pointers were made from, if that is known. What follows from these is worked out
    once, as an access is kept from launch to launch."""

    addresses: Any
    mask: Any
    programs: Any
    used: Any
    low: int
    high: int
    size: int
    argument: str | None

    @property
    def by_all(self) -> bool:
        return self.addresses.shape[0] == 1 and len(self.programs) > 1

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return 4 * int(self.addresses.nbytes)

    @_Once
    def owners(self) -> Any:
        """The program that touches each address. Only where not all programs do."""
        owners = np.repeat(self.programs, self.addresses.size // len(self.programs))
        return owners if self.mask is None else owners[self.mask.reshape(-1)]

    @_Once
    def places(self) -> Any:
        """The offset of each lane's element from `low`. Lanes that are masked off may point anywhere."""
        offsets = (self.addresses - np.uint64(self.low)).view(np.int64)
        return offsets >> (self.size.bit_length() - 1) if self.size > 1 else offsets

    @_Once
    def unused(self) -> Any:
        return ~self.mask

    @_Once
    def every(self) -> Any:
        """The mask, if there is one or not."""
        return np.ones(self.addresses.shape, np.bool_) if self.mask is None else self.mask

    @_Once
    def collides(self) -> bool:
        """True if two programs have one address, or two lanes where there is one program only."""
        owners = self.owners if len(self.programs) > 1 else np.arange(self.used.size)
        try:
            _marks([self], [owners], self.low, self.high)
        except Unusual:
            return True
        return False


def located(programs: Any, pointers: Any, mask: Any, size: int, argument: str | None) -> Access:
    """The access at which elements of this size are loaded or stored. mask: None where there is none; argument: what
    the pointers were made from, if that is known."""
    shape = pointers.shape
    if mask is not None and mask.shape != shape:
        shape = np.broadcast_shapes(shape, mask.shape)
        pointers, mask = _whole(pointers, shape), _whole(mask, shape)
    used = pointers.reshape(-1) if mask is None else pointers[mask]
    low, high = (int(_least(used)), int(_most(used)) + size) if used.size else (0, 0)
    return Access(pointers, mask, programs, used, low, high, size, argument)


@dataclass(slots=True)
class Lanes:
    """The memory of a launch under way. Mutable: what it touches gathers."""

    spans: Sequence[launch_memory.Span]
    _loads: list[Access] = field(default_factory=list)
    _stores: list[Access] = field(default_factory=list)
    _undo: list[tuple[int, bytes]] = field(default_factory=list)
    _notes: list[tuple[Access, bool]] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int, int]:
        return len(self._loads), len(self._stores), len(self._undo), len(self._notes)

    def back_to(self, mark: tuple[int, int, int, int]) -> None:
        """Memory as it was at the mark."""
        loads, stores, undo, notes = mark
        for address, before in reversed(self._undo[undo:]):
            ctypes.memmove(address, before, len(before))
        del self._loads[loads:], self._stores[stores:], self._undo[undo:], self._notes[notes:]

    def touch(self, access: Access, *, writes: bool) -> bool:
        """Note what these lanes touch; whether that is anything. Unusual if it is not all within one argument's
        view."""
        if touched.noting is not None:
            self._notes.append((access, writes))
        if not access.used.size:
            return False
        low, high = access.low, access.high
        for span in self.spans:
            if span.start <= low and high <= span.stop and launch_memory.reaches(access.argument, span, self.spans):
                break
        else:
            raise Unusual
        if writes:
            self._stores.append(access)
            self._undo.append((low, ctypes.string_at(low, high - low)))
        else:
            self._loads.append(access)
        return True

    def settle(self) -> None:
        """All programs have run. Unusual if one touched what another stored, or if there is but one, and two of its
        lanes stored to one place; else whoever listens is told."""
        for stretch in _stretches(self._stores):
            _refuse_meeting(stretch, self._loads)
        if touched.noting is not None:
            for access, writes in self._notes:
                if access.used.size:
                    touched.noting.used(access.used, access.low, access.high - access.size, writes=writes)


def _stretches(stores: list[Access]) -> list[list[Access]]:
    """Stores, those together whose places lie among each other's."""
    stretches: list[list[Access]] = []
    end = 0
    for store in sorted(stores, key=lambda store: store.low):
        if stretches and store.low < end:
            stretches[-1].append(store)
            end = max(end, store.high)
        else:
            stretches.append([store])
            end = store.high
    return stretches


def _refuse_meeting(stores: list[Access], loads: list[Access]) -> None:
    """Unusual if a program touches what another stored."""
    low, high = stores[0].low, max(store.high for store in stores)
    meeting = [load for load in loads if load.low < high and low < load.high]
    if any(store.by_all for store in stores):
        # What they all store is the same, but what some of them read depends on who was first.
        if len(stores) > 1 or meeting:
            raise Unusual
        return
    if any(store.collides for store in stores):
        raise Unusual
    if len(stores) == 1 and not meeting:
        return
    marks = _marks(stores, [store.owners for store in stores], low, high)
    for load in meeting:
        if load.size != stores[0].size:
            raise Unusual
        inside = (load.used >= np.uint64(low)) & (load.used < np.uint64(high))
        seen = marks[_places(load.used[inside], low, load.size)]
        if ((seen != _NOBODY) & (load.by_all or seen != load.owners[inside])).any():
            raise Unusual


def _marks(stores: list[Access], owners: list[Any], low: int, high: int) -> Any:
    """The program that stored each element in [low, high). Unusual if two did."""
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


def _whole(data: Any, shape: tuple[int, ...]) -> Any:
    if data.shape == shape:
        return data
    result = np.empty(shape, data.dtype)
    result[...] = data
    return result


def load(lanes: Lanes, access: Access, other: Any, dtype: Any) -> Any:
    """other: what lanes have that are masked off, None for zeros."""
    shape = access.addresses.shape
    if not lanes.touch(access, writes=False):
        result = np.zeros(shape, dtype)
    elif access.high - access.low > _COPIED * access.addresses.size:
        nothing = np.zeros(shape, dtype)
        result = triton_interpreter._interpreter.load(access.addresses, access.every, nothing, dtype)
    else:
        between = np.frombuffer(ctypes.string_at(access.low, access.high - access.low), dtype)
        result = between.take(access.places, mode="clip")
    if access.mask is not None:
        if other is not None and other.shape[0] > shape[0]:
            result = _whole(result, (other.shape[0], *shape[1:]))
        np.copyto(result, dtype.type(0) if other is None else other, where=access.unused)
    return result


def store(lanes: Lanes, access: Access, values: Any) -> None:
    shape = access.addresses.shape
    if values.shape[0] > shape[0]:
        # At one place for all programs, but not of one value.
        shape = (values.shape[0], *shape[1:])
        mask = None if access.mask is None else _whole(access.mask, shape)
        access = located(access.programs, _whole(access.addresses, shape), mask, access.size, access.argument)
    if lanes.touch(access, writes=True):
        triton_interpreter._interpreter.store(access.addresses, _whole(values, shape), access.every)
