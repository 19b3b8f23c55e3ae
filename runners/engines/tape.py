"""What a step shows, on its way to the watch: device tensors are copied on the device and brought over together.

Copying each tensor to the host on its own would cost more than the work that is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from repro.trace import Array

See = Callable[[int, str, str, Array], None]


@dataclass(frozen=True, slots=True)
class _Pending:
    """One device tensor that waits. as_slots: it is a mask, and is recorded as the indices at which it is true.
    tell: whether it is recorded, or only asked for."""

    step: int
    path: str
    name: str
    tensor: torch.Tensor
    as_slots: bool
    tell: bool


class Tape:
    """Values seen go to `see`: what is on the host at once, what is on the device at the next flush."""

    def __init__(self, see: See) -> None:
        self._see = see
        self._pending: list[_Pending] = []
        self._held: list[tuple[_Pending, int]] = []  # with its size in bytes
        self._packed: list[torch.Tensor] = []
        self._came: dict[tuple[str, str], Array] = {}

    def see(self, step: int, path: str, name: str, value: object, *, as_slots: bool = False, tell: bool = True) -> None:
        """Record a tensor, an array or a number; None is nothing to record. A device tensor is recorded as it is at
        the next hold() or flush()."""
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            self._take(step, path, name, np.asarray(value), tell)
            return
        one = _Pending(step, path, name, value.detach(), as_slots, tell)
        if value.is_cuda:
            self._pending.append(one)
        else:
            self._take(step, path, name, _array(one, _bytes(one.tensor).numpy()), tell)

    def hold(self) -> None:
        """Copy what waits, on the device: it may be overwritten from here on."""
        if self._pending:
            flat = [_bytes(one.tensor) for one in self._pending]
            self._packed.append(torch.cat(flat))
            self._held += [(one, len(piece)) for one, piece in zip(self._pending, flat, strict=True)]
            self._pending = []

    def flush(self) -> dict[tuple[str, str], Array]:
        """Bring everything to the host and record it. All that came since the last flush, by path and name."""
        self.hold()
        if self._packed:
            data = (torch.cat(self._packed) if len(self._packed) > 1 else self._packed[0]).cpu().numpy()
            start = 0
            for one, size in self._held:
                self._take(one.step, one.path, one.name, _array(one, data[start : start + size]), one.tell)
                start += size
        came, self._came = self._came, {}
        self._packed, self._held = [], []
        return came

    def _take(self, step: int, path: str, name: str, array: Array, tell: bool) -> None:
        self._came[path, name] = array
        if tell:
            self._see(step, path, name, array)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    # A single element keeps whatever stride it was cut out with, and that cannot be viewed as bytes.
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def _array(one: _Pending, data: Array) -> Array:
    """The tensor's bytes as the array that is recorded; bfloat16, which numpy lacks, as the float32 of equal value."""
    if one.as_slots:
        return np.flatnonzero(data)
    shape = tuple(one.tensor.shape)
    if one.tensor.dtype == torch.bfloat16:
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return data.view(_NUMPY[one.tensor.dtype]).reshape(shape)


_NUMPY = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
