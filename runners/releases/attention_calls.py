"""Calls of attention, of whatever layer and backend, as sglang's models make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

_own = True


@contextmanager
def heard(listener: Callable[[Any, int, tuple[int, int]], None]) -> Iterator[None]:
    """While entered, `listener` is given the batch, the number of queries and ranks_tokens() of each call, before it is
    made."""
    from sglang.srt.layers.radix_attention import RadixAttention

    forward = RadixAttention.forward

    def telling(layer: Any, q: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _own:
            listener(kwargs["forward_batch"] if "forward_batch" in kwargs else args[2], len(q), ranks_tokens())
        return forward(layer, q, *args, **kwargs)

    with patch.object(RadixAttention, "forward", telling):
        yield


@contextmanager
def rounded(dtype: torch.dtype) -> Iterator[None]:
    """While entered, attention takes new keys and values as a cache of this type holds them, as later calls read them.
    Without it, kernels take those of the call itself unrounded."""
    from sglang.srt.layers.radix_attention import RadixAttention

    forward = RadixAttention.forward

    def rounding(
        layer: Any, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, *args: Any, **kw: Any
    ) -> Any:
        k, v = (None if each is None else each.to(dtype).to(each.dtype) for each in (k, v))
        return forward(layer, q, k, v, *args, **kw)

    with patch.object(RadixAttention, "forward", rounding):
        yield


@contextmanager
def of_the_runner(is_of_runner: bool) -> Iterator[None]:
    """While entered, calls are those of the runner that is driven, or of others, which are not reported."""
    global _own
    before, _own = _own, is_of_runner
    try:
        yield
    finally:
        _own = before


def are_own() -> bool:
    """True while calls are those of the runner that is driven."""
    return _own


def ranks_tokens() -> tuple[int, int]:
    """The numbers of tokens that parallel layers are told for this rank and for all ranks; -1 where nobody has told
    them."""
    from sglang.srt.layers import dp_attention

    def told(counter: Callable[[], int | None]) -> int:
        try:
            count = counter()
        except AttributeError:
            return -1
        return -1 if count is None else count

    return told(dp_attention.get_local_dp_buffer_len), told(dp_attention.get_global_dp_buffer_len)
