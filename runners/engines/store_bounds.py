"""Stores of an interpreted kernel that would land outside of the memory it was given are lost.

On a GPU they land in foreign memory, or end the process. Here they would land in the heap of the interpreter, whose
own crash, at some later time, says nothing about the kernel. Guard bands lie inside and show the overflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter as triton_interpreter

# First and last address of the storages that the kernel under way was given; None: it may write anywhere.
_spans: list[tuple[int, int]] | None = None


def begin(arguments: Iterable[object]) -> None:
    """A launch with these arguments begins."""
    global _spans
    tensors = (leaf for leaf in tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor))
    _spans = [_span(tensor) for tensor in tensors if tensor.numel()]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _kept_inside(store: Any) -> Any:
    def bounded(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if _spans is not None:
            addresses = ptrs.data
            first, end = int(addresses.min()), int(addresses.max()) + value.data.itemsize
            if not any(low <= first and end <= high for low, high in _spans):
                mask = triton_interpreter.TensorHandle(mask.data & _inside(addresses, value.data.itemsize), mask.dtype)
        return store(self, ptrs, value, mask, *rest)

    return bounded


def kept(addresses: Any, size: int) -> Any:
    """Which stores of this many bytes land in the launch's memory; None where that is not known."""
    return None if _spans is None else _inside(addresses, size)


def _inside(addresses: Any, size: int) -> Any:
    inside = np.zeros(addresses.shape, dtype=np.bool_)
    for low, high in _spans or ():
        inside |= (addresses >= np.uint64(low)) & (addresses <= np.uint64(high - size))
    return inside


def _anywhere(to_pointer: Any) -> Any:
    """A kernel that makes addresses out of numbers was given memory in another way."""

    def convert(self: Any, *args: Any) -> Any:
        global _spans
        _spans = None
        return to_pointer(self, *args)

    return convert


def install() -> None:
    builder = triton_interpreter.InterpreterBuilder
    builder.create_masked_store = _kept_inside(builder.create_masked_store)
    builder.create_int_to_ptr = _anywhere(builder.create_int_to_ptr)
