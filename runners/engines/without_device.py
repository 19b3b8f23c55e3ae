"""What only a device has, on the host: memory that is pinned for it, and streams that a tensor is recorded on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Unpinned(TorchFunctionMode):
    """While entered, pinned memory is ordinary memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **kwargs)


@contextmanager
def hosted() -> Iterator[None]:
    """While entered, pinning memory and recording streams do nothing: there is one memory and one order."""
    inherited = torch.Tensor.record_stream
    torch.Tensor.record_stream = lambda self, stream: None
    try:
        with _Unpinned():
            yield
    finally:
        torch.Tensor.record_stream = inherited
