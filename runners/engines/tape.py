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


# Room for what a step of a small setup shows; it grows as needed.
_ROOM = 1 << 16


@dataclass(slots=True)
class _Pending:
    """One device tensor that waits. as_slots: it is a mask, and is recorded as the indices at which it is true.
    tell: whether it is recorded, or only asked for. size: in bytes."""

    step: int
    path: str
    name: str
    tensor: torch.Tensor
    as_slots: bool
    tell: bool
    size: int


def waits(tensor: torch.Tensor) -> bool:
    """Whether this tensor is brought over later, together with others."""
    return tensor.is_cuda


class Tape:
    """Values seen go to `see`: what is on the host at once, what is on the device at the next flush."""

    def __init__(self, see: See) -> None:
        self._see = see
        self._pending: list[_Pending] = []
        self._flat: list[torch.Tensor] = []  # the bytes of these
        self._held: list[_Pending] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._came: dict[tuple[str, str], Array] = {}

    def see(self, step: int, path: str, name: str, value: object, *, as_slots: bool = False, tell: bool = True) -> None:
        """Record a tensor, an array or a number; None is nothing to record. A device tensor is recorded as it is at
        the next hold() or flush()."""
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            self._take(step, path, name, np.asarray(value), tell)
            return
        flat = _bytes(value)
        one = _Pending(step, path, name, value, as_slots, tell, flat.shape[0])
        if waits(value):
            self._pending.append(one)
            self._flat.append(flat)
        else:
            # A copy, as what came is compared later.
            self._take(step, path, name, _array(one, flat.numpy().copy()), tell)

    def hold(self) -> None:
        """Copy what waits, on the device, in one launch: it may be overwritten from here on."""
        if not self._pending:
            return
        end = self._used + sum(one.size for one in self._pending)
        if end > self._buffer.shape[0]:
            self._grow(end, self._flat[0].device)
        torch.cat(self._flat, out=self._buffer[self._used : end])
        self._used = end
        self._held += self._pending
        self._pending, self._flat = [], []

    def flush(self) -> dict[tuple[str, str], Array]:
        """Bring everything to the host and record it. All that came since the last flush, by path and name."""
        self.hold()
        if self._used:
            data = self._buffer[: self._used].cpu().numpy()
            if not self._buffer.is_cuda:
                data = data.copy()
            start = 0
            for one in self._held:
                self._take(one.step, one.path, one.name, _array(one, data[start : start + one.size]), one.tell)
                start += one.size
        came, self._came = self._came, {}
        self._used, self._held = 0, []
        return came

    def _grow(self, size: int, device: torch.device) -> None:
        buffer = torch.empty(max(2 * size, _ROOM), dtype=torch.uint8, device=device)
        if self._used:
            buffer[: self._used] = self._buffer[: self._used]
        self._buffer = buffer

    def _take(self, step: int, path: str, name: str, array: Array, tell: bool) -> None:
        self._came[path, name] = array
        if tell:
            self._see(step, path, name, array)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
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
