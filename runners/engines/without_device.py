"""Stand-ins on the host for what only a device has: memory that is pinned for it, and streams that a tensor is recorded
on; and what sglang asks the host for where it would ask a device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Unpinned(TorchFunctionMode):
    """While entered, pinned memory is ordinary memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        # What a GPU copies over while it goes on is another tensor, here, too.
        if func is torch.Tensor.to and (kwargs or {}).get("non_blocking") and func(*args, **kwargs) is args[0]:
            return args[0].clone()
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


def remember_cores() -> None:
    """Have sglang ask for the host's cores once: whenever it asks how much memory is free, which is some twenty times
    until a session is open, it starts a process for them."""
    common: Any = sys.modules.get("sglang.srt.utils.common")
    topology = getattr(common, "parse_lscpu_topology", None)
    if topology is not None:
        common.parse_lscpu_topology = remembered = functools.cache(topology)
        with suppress(Exception):  # whoever asks next will meet it
            remembered()
