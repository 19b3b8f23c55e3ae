"""Copies between host and GPU through pinned memory, so that only calls that say so wait for the device. On a GPU that
many processes share, waiting takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import torch


def sent(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor's contents on the device, for whatever the device does from now on."""
    if device.type != "cuda" or not host.numel():
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def fetched(flat: torch.Tensor, wait: Callable[[], None] | None = None) -> torch.Tensor:
    """A tensor's contents in host memory, once the device has been waited for. wait: the way to wait; else until they
    are there."""
    if not flat.is_cuda:
        here = flat
    else:
        here = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
        wait = wait or torch.cuda.current_stream().synchronize
    if wait:
        wait()
    return here
