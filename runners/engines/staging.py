"""Recorded arrays on their way to the host: device tensors are copied on the device and brought over together.

Copying each tensor to the host on its own would cost more than the work that is watched, and so would telling the
watch of each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from repro.traces.trace import Array
from runners.engines.sending import fetched
from runners.recording.observer import HarnessError, Watch
from runners.recording.packed import Entry, PackedLayout, packed_layout

# Room for what a step of a small setup shows; it grows as needed.
_ROOM = 1 << 16
# By a tensor's identity: the tensor, which is kept so that no other gets that identity, and its bytes.
Flats = Mapping[int, tuple[torch.Tensor, torch.Tensor]]
_Made = tuple[Entry, bool]


def waits(tensor: torch.Tensor) -> bool:
    """True if this tensor is brought over later, together with others."""
    return tensor.is_cuda


def flats(tensors: Mapping[str, torch.Tensor]) -> Flats:
    """The bytes of tensors that stay where they are, for every staging buffer of a session."""
    return {id(tensor): (tensor, _bytes(tensor)) for tensor in tensors.values() if waits(tensor)}


@dataclass(slots=True)
class HostArrays:
    """The bytes that came to the host, as arrays that are made when they are asked for."""

    _layouts: list[tuple[PackedLayout, bytes]] = field(default_factory=list)

    def add(self, what: PackedLayout, data: bytes) -> None:
        self._layouts.append((what, data))

    def __getitem__(self, place: tuple[str, str]) -> Array:
        # The last of that name: what a mask was made into came after it.
        for what, data in reversed(self._layouts):
            if place in what.places:
                return what.array(data, *place)
        raise KeyError(place)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for what, _ in self._layouts:
            yield from what.places


class StagingBuffer:
    """Values seen in one step go to `watch`: what is on the host at the next hold(), what is on the device at the next
    flush()."""

    def __init__(self, watch: Watch, step: int, known: Flats | None = None) -> None:
        self._watch, self._step = watch, step
        self._flats = dict(known or {})
        self._host: list[Entry] = []
        self._parts: list[bytes] = []  # their bytes
        self._pending: list[Entry] = []
        self._waiting: list[torch.Tensor] = []  # their bytes
        # Those of them that are not arrays yet, and whether they are recorded: they are recorded as the indices at
        # which a mask is true, or as float32, as numpy lacks bfloat16.
        self._made: list[_Made] = []
        self._held: list[tuple[PackedLayout, list[_Made]]] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._came = HostArrays()

    def see(
        self, path: str, name: str, value: object, *, rows: int = 0, as_slots: bool = False, tell: bool = True
    ) -> None:
        """Record a tensor, an array or a number; None is nothing to record. A device tensor is recorded as it is at
        the next hold() or flush(). rows: record it as so many rows, flat where each is one value wide. as_slots: it is
        a mask, and is recorded as the indices at which it is true. tell: False if it is only asked for."""
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            self._take(path, name, np.asarray(value), rows, tell)
        elif not waits(value):
            self._take(path, name, _array(value, as_slots), rows, tell)
        else:
            if as_slots or value.dtype is torch.bfloat16:
                raw = _entry(path, name, "|u1" if as_slots else "<u2", value.shape, rows, False)
                self._made.append((raw, tell))
            else:
                raw = _entry(path, name, _DTYPES[value.dtype], value.shape, rows, tell)
            self._pending.append(raw)
            known = self._flats.get(id(value))
            if known is None:
                known = self._flats[id(value)] = (value, _bytes(value))
            self._waiting.append(known[1])

    def see_numbers(self, path: str, numbers: Mapping[str, int]) -> None:
        """The same as see() of each of these, which are so many that each by itself would cost more than all of
        them."""
        if numbers:
            self._host += _of_numbers(path, tuple(numbers))
            self._parts.append(np.fromiter(numbers.values(), np.int64, len(numbers)).tobytes())

    def hold(self) -> None:
        """Tell what is on the host, and copy what waits, on the device, in one launch: all of it may be overwritten
        from here on."""
        if self._host:
            what, data = packed_layout(tuple(self._host)), b"".join(self._parts)
            self._host, self._parts = [], []
            self._tell(what, data)
        if not self._waiting:
            return
        what = packed_layout(tuple(self._pending))
        end = self._used + what.size
        if what.size:  # nothing but arrays without rows, of an idle batch say, is nothing to copy
            if end > self._buffer.shape[0]:
                self._grow(end, self._waiting[0].device)
            torch.cat(self._waiting, out=self._buffer[self._used : end])
            self._used = end
        self._held.append((what, self._made))
        self._pending, self._made, self._waiting = [], [], []

    def flush(self, wait: Callable[[], None] | None = None) -> HostArrays:
        """Bring everything to the host and record it. All that came since the last flush. wait: how to wait for the
        device, which is done even if there is nothing to bring; else as long as that takes."""
        self.hold()
        if wait and not self._held:
            wait()
        if self._held:
            data = fetched(self._buffer[: self._used], wait).numpy().tobytes()
            start = 0
            for what, arrays in self._held:
                part = data[start : start + what.size]
                start += what.size
                self._tell(what, part)
                for raw, tell in arrays:
                    bits = what.array(part, raw.path, raw.name)
                    array = np.flatnonzero(bits) if raw.dtype == "|u1" else _wide(bits)
                    self._take(raw.path, raw.name, array, 0, tell)
            self._used, self._held = 0, []
            self.hold()
        came, self._came = self._came, HostArrays()
        return came

    def _tell(self, what: PackedLayout, data: bytes) -> None:
        self._came.add(what, data)
        self._watch.see_all(self._step, what, data)

    def _take(self, path: str, name: str, array: Array, rows: int, tell: bool) -> None:
        if array.dtype.kind not in "biuf":
            raise HarnessError(f"{path}/{name}: an array of {array.dtype} cannot be recorded")
        self._host.append(_entry(path, name, array.dtype.str, array.shape, rows, tell))
        self._parts.append(array.tobytes())

    def _grow(self, size: int, device: torch.device) -> None:
        buffer = torch.empty(max(2 * size, _ROOM), dtype=torch.uint8, device=device)
        if self._used:
            buffer[: self._used] = self._buffer[: self._used]
        self._buffer = buffer


@functools.lru_cache(maxsize=4096)
def _entry(path: str, name: str, dtype: str, shape: tuple[int, ...], rows: int, announced: bool) -> Entry:
    """The entry for an array of this shape: as so many rows, if any are asked for; one that is too short for
    them, or does not come out even, as it is."""
    size = math.prod(shape)
    if rows and rows <= size and size % rows == 0 and (not shape or shape[0] >= rows):
        shape = (rows,) if size == rows else (rows, size // rows)
    return Entry(path, name, dtype, tuple(shape), announced)


@functools.lru_cache(maxsize=1024)
def _of_numbers(path: str, names: tuple[str, ...]) -> tuple[Entry, ...]:
    return tuple(Entry(path, name, "<i8", (), True) for name in names)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    flat = tensor.reshape(-1)
    # A single element keeps whatever stride it was cut out with, and that cannot be viewed as bytes.
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def _array(tensor: torch.Tensor, as_slots: bool) -> Array:
    """A host tensor as the array that is recorded."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if as_slots:
        return np.flatnonzero(tensor.numpy())
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _wide(bits: Array) -> Array:
    """bfloat16, as the float32 of equal value."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


_DTYPES = {
    torch.bool: "|b1",
    torch.uint8: "|u1",
    torch.int8: "|i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
}
