"""Guard bands: known values before and behind every tensor that is created while the guards are up.

A kernel that runs past a buffer writes into a band instead of into a neighbour, and the band tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from repro.traces.trace import Array
from runners.engines.places import in_sglang

BAND = 32  # elements on each side; a multiple of 16 bytes for every dtype, so kernels find the alignment they expect
_FILL = 0x5A  # every byte of a band: 0x5A5A... is a large integer and an ordinary float, and never a neutral value

# What is asked for in so many bytes and left to the allocator, a workspace say, comes untouched from the host's system:
# there is nothing to copy, and reading or writing all of it would bring it all into memory.
_VAST = 1 << 26
# Pinned memory of so many bytes, a workspace of flashinfer's say, stays as it is: bands would make it twice as much.
_WORKSPACE = 1 << 20
# torch's own, which an engine may have replaced by the time that they are called.
_EMPTY = torch.empty
_FACTORIES = {torch.zeros, torch.ones, torch.full, _EMPTY}
# And what makes a tensor of another: no bands, but the line is remembered.
_MAKES = {torch.arange, torch.tensor, torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like}
_MAKES |= {torch.Tensor.clone, torch.Tensor.new_zeros, torch.Tensor.new_empty, torch.Tensor.new_full}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """The bands around some buffers of one device: before, behind, before, behind, ... as bytes, and their filling."""

    names: tuple[str, ...]
    slices: tuple[torch.Tensor, ...]
    filling: tuple[torch.Tensor, ...]

    @classmethod
    def around(cls, flats: dict[str, torch.Tensor]) -> Bands:
        """The bands of flat tensors that each begin and end with one."""
        slices = [part.view(torch.uint8) for flat in flats.values() for part in (flat[:BAND], flat[-BAND:])]
        filling = [torch.full_like(part, _FILL) for part in slices]
        return cls(names=tuple(flats), slices=tuple(slices), filling=tuple(filling))

    def read(self) -> torch.Tensor:
        """All bytes of all bands."""
        return torch.cat(self.slices)

    def broken(self, read: Array) -> dict[str, Array]:
        """Nothing if these are the bytes that bands begin with; else both bands of each buffer, one behind the other,
        by the buffer's name."""
        if (read == _FILL).all():
            return {}
        ends = np.cumsum([before.numel() + behind.numel() for before, behind in self._pairs()])
        return dict(zip(self.names, np.split(read, ends[:-1]), strict=True))

    def mend(self) -> None:
        """Fill the bands again, so that what runs into them next is seen as such: one launch on a GPU."""
        torch._foreach_copy_(self.slices, self.filling)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.slices[::2], self.slices[1::2], strict=True)


class Guards(TorchFunctionMode):
    """While entered, factory calls return tensors with bands around them; `capturing` says when to keep out.

    apart: on a device of this type they begin their storage, as what is allocated does, and are no views behind a band:
    Dynamo traces those by themselves. Contents that were not written there are unknown and not copied.
    """

    def __init__(self, capturing: Callable[[], object], *, apart: str = "") -> None:
        super().__init__()
        self._capturing, self._apart = capturing, apart
        self._flats: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _MAKES and not self._capturing():
            _remember(result)
        if func not in _FACTORIES or not result.numel() or not result.is_contiguous() or self._capturing():
            return result
        pinned = bool(kwargs and kwargs.get("pin_memory"))
        if pinned and result.nbytes >= _WORKSPACE:
            return result
        flat = result.new_empty(result.numel() + 2 * BAND, pin_memory=pinned)
        for band in (flat[:BAND], flat[-BAND:]):
            band.view(torch.uint8).fill_(_FILL)
        inner = flat[BAND:-BAND].view(result.shape)
        apart = result.device.type == self._apart
        if func is not _EMPTY or not (apart or result.nbytes >= _VAST):
            inner.copy_(result)
        if apart:
            # Types that DLPack has no name for, floats of eight bits say, stay views.
            with suppress(BufferError, RuntimeError):
                inner = torch.from_dlpack(inner)
        self._flats[inner.untyped_storage().data_ptr()] = flat
        _note(flat)
        _remember(inner)
        return inner

    def bands(self, tensors: dict[str, torch.Tensor]) -> list[Bands]:
        """The bands around those of these tensors that are, or are views of, guarded ones; per device. All other
        guarded tensors are forgotten."""
        flats = {name: self._flats.get(tensor.untyped_storage().data_ptr()) for name, tensor in tensors.items()}
        guarded = {name: flat for name, flat in flats.items() if flat is not None}
        self._flats = {}
        devices = dict.fromkeys(flat.device for flat in guarded.values())
        return [
            Bands.around({name: flat for name, flat in guarded.items() if flat.device == device}) for device in devices
        ]


def lowered() -> AbstractContextManager[object]:
    """While entered, no guards are up."""
    up = isinstance(_get_current_function_mode(), Guards)
    return _pop_mode_temporarily() if up else nullcontext()


# Bytes of each band, by the address of a storage. The weak reference keeps an address from being given to another.
_banded: dict[int, tuple[StorageWeakRef, int]] = {}


def _note(flat: torch.Tensor) -> None:
    storage = flat.untyped_storage()
    _banded[storage._cdata] = (StorageWeakRef(storage), BAND * flat.element_size())


# The line of sglang's that made a storage, by its address.
_made: dict[int, tuple[StorageWeakRef, str]] = {}


def _remember(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    _made[storage._cdata] = (StorageWeakRef(storage), in_sglang())


def made_at(storage: torch.UntypedStorage) -> str:
    """The line of sglang's that made this, empty if no guard saw it."""
    noted = _made.get(storage._cdata)
    return noted[1] if noted and not noted[0].expired() else ""


def band_bytes(storage: torch.UntypedStorage) -> int:
    """The bytes at each end of this storage that are a guard band."""
    noted = _banded.get(storage._cdata)
    if noted is None:
        return 0
    if noted[0].expired():
        del _banded[storage._cdata]
        return 0
    return noted[1]


def untouched(count: int) -> Array:
    """The contents of a band as long as nothing writes past a buffer: `count` bytes."""
    return np.full(count, _FILL, dtype=np.uint8)
