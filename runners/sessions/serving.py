"""One process, setup after setup: what the last one held is let go of before the next is built, and it is checked that
the memory has come back."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runners.engines.active import engine
from runners.recording.observer import HarnessError
from runners.releases.serving import let_go

# As it is before runners/sessions/open.py has the collector keep off what is frozen.
_freeze = gc.freeze

# Of device memory, what may stay beyond what stayed behind the first setup: workspaces of libraries.
_SLACK = 64 << 20

_held: list[StorageWeakRef] = []  # the memory of the setup that is served
_stayed: list[int] = []  # bytes of the device that stayed behind the first setup


def holds(tensors: Iterable[torch.Tensor]) -> None:
    """Say what must be gone when the setup is closed."""
    _held.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)


def close_session() -> None:
    """Free what the last session held, to which only cycles, sglang and engines still refer. HarnessError if
    it did not all come back: then this process must not go on."""
    captured = bool(_held)
    # Graphs go before the process groups that were there when they were captured.
    gc.collect()
    engine.forget()
    let_go()
    gc.collect()
    left = sum(not storage.expired() for storage in _held)
    if left:
        raise HarnessError(f"the last setup was not freed: {left} of {len(_held)} tensors are still there")
    _held.clear()
    # What is left stays: modules imported since, functions traced. Each capture collects, and need not look at them.
    _freeze()
    if not captured:
        return  # the setup was refused before anything of it was built
    stayed = engine.memory_reserved()
    _stayed[:] = _stayed or [stayed]
    if stayed > _stayed[0] + _SLACK:
        raise HarnessError(f"the last setup was not freed: {stayed} bytes of the device, {_stayed[0]} at first")
