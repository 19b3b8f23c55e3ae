"""Reductions and scans over values with a leading axis of programs (batched.py); without one, Triton's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from runners.engines.triton.batched import NotBatched, batched

TensorHandle = triton_interpreter.TensorHandle


def _tensor(data: Any, dtype: Any) -> Any:
    """[rows, ...] as a tensor of this element type."""
    data = data.astype(triton_interpreter._get_np_dtype(dtype))
    kind = tl.block_type(dtype, list(data.shape[1:])) if data.ndim > 1 else dtype
    return tl.tensor(TensorHandle(data, dtype.scalar), kind)


def _flat(tensor: Any) -> Any:
    data = tensor.handle.data
    # Which elements are added first follows from their order in memory, which a copy would change.
    if data.ndim > 2:
        raise NotBatched
    return tensor


def _reduced(inputs: tuple[Any, ...], axis: int | None, combine: Any, keep_dims: bool) -> tuple[Any, ...]:
    if axis is None:
        inputs, axis = tuple(_flat(tensor) for tensor in inputs), 0
    if axis < 0:
        axis += inputs[0].handle.data.ndim - 1
    first, at = inputs[0], axis + 1
    data = first.handle.data
    standard = tl.standard
    if combine in (standard._argmin_combine_tie_break_left, standard._argmax_combine_tie_break_left):
        least = combine == standard._argmin_combine_tie_break_left
        value, place = (np.min, np.argmin) if least else (np.max, np.argmax)
        values = value(data, axis=at, keepdims=keep_dims)
        return _tensor(values, first.dtype), _tensor(place(data, axis=at, keepdims=keep_dims), tl.int32)
    known: dict[Any, Callable[..., Any]] = {
        standard._elementwise_max: np.nanmax,
        standard._elementwise_min: np.nanmin,
        standard._sum_combine: np.sum,
    }
    for function, reduce in known.items():
        if combine == function:
            return (_tensor(reduce(data, axis=at, keepdims=keep_dims), first.dtype),)
    raise NotBatched


def _scanned(inputs: tuple[Any, ...], axis: int, combine: Any, reverse: bool) -> tuple[Any, ...]:
    known: dict[Any, Callable[..., Any]] = {
        tl.standard._sum_combine: np.cumsum,
        tl.standard._prod_combine: np.cumprod,
    }
    for function, scan in known.items():
        if combine == function:
            data = inputs[0].handle.data
            at = axis + 1 if axis >= 0 else data.ndim + axis
            data = scan(np.flip(data, axis=at) if reverse else data, axis=at)
            result = _tensor(data, inputs[0].dtype)
            if reverse:
                result.handle.data = np.flip(result.handle.data, axis=at)
            return (result,)
    raise NotBatched


def _reduce(input: Any, axis: int | None, combine_fn: Any, keep_dims: bool = False, **kwargs: Any) -> Any:
    if not batched():
        return triton_interpreter.ReduceOps(axis, combine_fn, keep_dims).apply(input)
    inputs = input if isinstance(input, tuple) else (input,)
    results = _reduced(inputs, axis, combine_fn, keep_dims)
    return results if isinstance(input, tuple) else results[0]


def _scan(input: Any, axis: int, combine_fn: Any, reverse: bool = False, **kwargs: Any) -> Any:
    if not batched():
        return triton_interpreter.ScanOps(axis, combine_fn, reverse).apply(input)
    inputs = input if isinstance(input, tuple) else (input,)
    results = _scanned(inputs, axis, combine_fn, reverse)
    return results if isinstance(input, tuple) else results[0]


def _patch(scope: Any) -> None:
    for module in (tl, tl.core):
        scope.set_attr(module, "reduce", _reduce)
        scope.set_attr(module, "associative_scan", _scan)


def install() -> None:
    """Patch reductions wherever Triton patches its language."""
    triton_interpreter._patch_reduce_scan = _patch
