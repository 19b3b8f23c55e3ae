"""What only a device has, on the host: memory that is pinned for it, and streams that a tensor is recorded on."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Hosted(TorchFunctionMode):
    """While entered, pinned memory is ordinary memory and recording a stream does nothing: there is one order only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **kwargs)
