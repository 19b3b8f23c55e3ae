"""Refusals of CUDA while a stream is capturing, with the same error on the emulated engine: reads by the host, data of
the host that would be copied in, and operations that need a value on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # np.unique imports it: for all sessions once
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

REFUSAL = "CUDA error: operation not permitted when stream is capturing"
_aten = torch.ops.aten


class CaptureRefused(RuntimeError):
    """Raised for what CUDA does not permit while a stream is capturing."""


# By address. The weak references keep an address from being given to another storage.
_host_storages: dict[int, StorageWeakRef] = {}


def mark_host(tensor: torch.Tensor) -> None:
    """Say that this tensor lives on the host in a real run: reading it during a capture is no copy."""
    for address in [address for address, storage in _host_storages.items() if storage.expired()]:
        del _host_storages[address]
    storage = tensor.untyped_storage()
    _host_storages[storage._cdata] = StorageWeakRef(storage)


def is_host(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage()._cdata in _host_storages


# Tagged as of dynamic shape for their worst case; with these arguments the shape is fixed.
_DYNAMIC_ONLY_WITH_MASK = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_REFUSED_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def refuse(func: Any, args: Any, kwargs: Any) -> None:
    """CaptureRefused if an operation needs a value on the host; NotImplementedError if it is not emulated."""
    if func in _DYNAMIC_ONLY_WITH_MASK:
        if any(map(_is_mask, args[1])):
            raise CaptureRefused(f"{REFUSAL}: {func} with a mask needs its count of true elements on the host")
    elif func.overloadpacket is _aten.set_:
        raise NotImplementedError(f"{func} swaps the memory of a tensor, which the emulation cannot freeze")
    elif any(tag in func.tags for tag in _REFUSED_TAGS) and not _is_known(func, args, kwargs):
        raise CaptureRefused(f"{REFUSAL}: {func} needs a value on the host")


def _is_known(func: Any, args: Any, kwargs: Any) -> bool:
    """True if the host values that this call needs are there already."""
    if func is _aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    return func is _aten._local_scalar_dense.default and is_host(args[0])


def _is_mask(index: object) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


class HostGuard(TorchFunctionMode):
    """Refuses reads of a tensor by the host, and host data that would have to be copied in, during capture."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if func in _HOST_READS and not is_host(args[0]):
            raise CaptureRefused(f"{REFUSAL}: Tensor.{name} copies to the host")
        if func in _HOST_DATA:
            place = _HOST_DATA[func]
            _refuse_host_data(name, args[place] if len(args) > place else kwargs.get("data", kwargs.get("obj")))
        if func is torch.Tensor.__setitem__ and _is_mask(args[1]) and isinstance(args[2], int | float):
            # With one number for all of them the true elements are not counted: CUDA fills under the mask.
            tensor, mask, value = args
            tensor.masked_fill_(mask[(...,) + (None,) * (tensor.dim() - mask.dim())], value)
            return None
        return func(*args, **kwargs)


_HOST_READS = {torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}
# And which argument is the data; in a list, a tuple of an index would come too.
_HOST_DATA = {
    torch.tensor: 0,
    torch.as_tensor: 0,
    torch.asarray: 0,
    torch.Tensor.new_tensor: 1,
    torch.Tensor.__getitem__: 1,
    torch.Tensor.__setitem__: 1,
}


def _refuse_host_data(name: str, data: object) -> None:
    for part in data if isinstance(data, tuple) and "item" in name else (data,):
        if isinstance(part, list | tuple | range | np.ndarray):
            raise CaptureRefused(f"{REFUSAL}: {name} copies {type(part).__name__} data from pageable memory")
