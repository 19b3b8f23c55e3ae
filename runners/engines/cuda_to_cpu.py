"""Code that names the device "cuda" literally, on an engine whose device is the CPU: whatever of torch's takes a device
is replaced by a function that takes the CPU for it. A TorchFunctionMode would see every call of every tensor instead,
of which a case makes thousands."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _device

from runners.engines.refused import mark_host

# Besides those that torch itself lists, which a default device holds for.
_FURTHER = (
    "empty_like",
    "from_file",
    "full_like",
    "normal",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

# Where it stands, by which name, and what is to stand there.
Replacement = tuple[Any, str, Callable[..., Any]]


def replacements() -> Iterator[Replacement]:
    """The functions that take the place of torch's own, so that what is asked for on a CUDA device is made on the
    CPU."""
    listed = _device._device_constructors()  # which remembers torch's own
    for module in (torch, torch.fft, torch.nested):
        for name, function in list(vars(module).items()):
            if (module is torch and name in _FURTHER) or (isinstance(function, _FUNCTIONS) and function in listed):
                yield module, name, _on_cpu(function)
    for name in _METHODS:
        yield torch.Tensor, name, _on_cpu(getattr(torch.Tensor, name))
    yield torch.Tensor, "to", _to_cpu(torch.Tensor.to)
    yield torch.Tensor, "cuda", lambda tensor, *_, **__: tensor
    yield _device.DeviceContext, "__init__", _default_cpu(_device.DeviceContext.__init__)


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and _is_cuda(device):
            kwargs["device"] = "cpu"
        pinned = kwargs.pop("pin_memory", False)  # for copies to a device
        result = function(*args, **kwargs)
        if pinned:
            mark_host(result)
        return result

    return made


def _to_cpu(to: Callable[..., Any]) -> Callable[..., Any]:
    """The same as _on_cpu, for a method whose device may come first."""
    moved = _on_cpu(to)

    @functools.wraps(to)
    def placed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        return moved(tensor, *args, **kwargs)

    return placed


def _default_cpu(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the default device that is set while a torch.device is entered."""

    @functools.wraps(initialise)
    def initialised(context: Any, device: Any) -> None:
        initialise(context, "cpu" if _is_cuda(device) else device)

    return initialised


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")
