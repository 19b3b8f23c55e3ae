"""Host memory on its way to a GPU and back: through pinned memory, so that nobody waits for the device but where it is
said. A GPU whose time many processes share keeps whoever waits for milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import torch


def sent(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What a host tensor holds, on the device: whatever that does from now on finds it there."""
    if device.type != "cuda" or not host.numel():
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def fetched(flat: torch.Tensor, wait: Callable[[], None] | None = None) -> torch.Tensor:
    """What a tensor holds, in host memory, once the device has been waited for. wait: how; else until it is there."""
    if not flat.is_cuda:
        here = flat
    else:
        here = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
        wait = wait or torch.cuda.current_stream().synchronize
    if wait:
        wait()
    return here
