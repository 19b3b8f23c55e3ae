"""Stand-ins on the host for what only a device has: memory that is pinned for it, and streams that a tensor is recorded
on; and what sglang asks the host for where it would ask a device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from runners.engines.refused import mark_host


class Follower(Protocol):
    """Told of memory of the host that a device knows."""

    def pinned(self, tensor: torch.Tensor) -> None:
        """A stream may copy into this."""

    def copied(self, source: torch.Tensor, result: torch.Tensor, *, waits: bool, to_host: bool) -> None:
        """A tensor is copied to the host, or from there. waits: until the copy is there. to_host: False if the call
        names a GPU, which makes no copy of what is there."""


class _Unpinned(TorchFunctionMode):
    """While entered, pinned memory is ordinary memory."""

    follower: Follower | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            mark_host(args[0])
            return args[0]
        pinned = kwargs.pop("pin_memory", False)
        result = func(*args, **kwargs)
        if pinned:
            mark_host(result)
        follower = _Unpinned.follower
        if _copies(func, args, kwargs) and result is args[0]:
            result = result.clone()
            if follower is not None:
                to_host = not any(map(_is_gpu, (*args[1:2], kwargs.get("device"))))
                follower.copied(args[0], result, waits=not kwargs.get("non_blocking"), to_host=to_host)
        elif pinned and follower is not None:
            follower.pinned(result)
        return result


def _copies(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if a GPU makes another tensor by this call."""
    if func is torch.Tensor.to:
        return bool(kwargs.get("non_blocking")) or args[1:2] == ("cpu",)
    return func is torch.Tensor.cpu


def _is_gpu(argument: object) -> bool:
    """True of a name that Python code takes for a GPU's."""
    return isinstance(argument, str) and argument == "cuda"


@contextmanager
def followed(follower: Follower) -> Iterator[None]:
    """While entered, it is reported."""
    _Unpinned.follower = follower
    try:
        yield
    finally:
        _Unpinned.follower = None


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


def copied_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy under way to the host; sglang makes none of a tensor that is there."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host


def remember_cores() -> None:
    """Have sglang ask for the host's cores once: whenever it asks how much memory is free, which is some twenty times
    until a session is open, it starts a process for them."""
    common: Any = sys.modules.get("sglang.srt.utils.common")
    topology = getattr(common, "parse_lscpu_topology", None)
    if topology is not None:
        common.parse_lscpu_topology = remembered = functools.cache(topology)
        with suppress(Exception):  # whoever asks next will meet it
            remembered()
