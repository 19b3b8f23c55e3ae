"""Code that names the device "cuda" literally, on an engine whose device is the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class LiteralCuda(TorchFunctionMode):
    """While entered, what is asked for on a CUDA device is made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **(kwargs or {}))


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"
