"""Calls of attention, of whatever layer and backend, as sglang's models make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention


@contextmanager
def heard(told: Callable[[Any, int], None]) -> Iterator[None]:
    """While entered, `told` is given the batch and the number of queries of each call, before it is made."""
    forward = RadixAttention.forward

    def telling(layer: Any, q: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        told(kwargs["forward_batch"] if "forward_batch" in kwargs else args[2], len(q))
        return forward(layer, q, *args, **kwargs)

    RadixAttention.forward = telling
    try:
        yield
    finally:
        RadixAttention.forward = forward
