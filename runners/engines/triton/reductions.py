"""Reductions and scans over values with a leading axis of programs (batched.py); without one, Triton's own.

Triton's interpreter takes the first NaN for an extreme value, as numpy does. Compiled code keeps the second of two
values unless the first one wins, which no NaN does: what lies behind the last NaN decides, padding included. Values are
compared one after the other here; a GPU compares them in pairs, in another order, and was not asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from runners.engines.triton.batched import NotBatched, batched
from runners.engines.triton.values import apply

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


def place_of(data: Any, *, axis: int, keepdims: bool, least: bool) -> Any:
    """The place of the extreme value along an axis."""
    extreme = np.argmin if least else np.argmax
    if data.dtype.kind != "f" or not np.isnan(data).any():
        return extreme(data, axis=axis, keepdims=keepdims)
    most = data.shape[axis] - 1
    places = np.moveaxis(np.broadcast_to(np.arange(most + 1), (*np.moveaxis(data, axis, -1).shape,)), -1, axis)
    last = np.where(np.isnan(data), places, -1).max(axis=axis, keepdims=True)
    behind = np.where(places > last, data, np.inf if least else -np.inf)
    # The first one behind the last NaN where all there are as bad as what comes before.
    winner = np.maximum(extreme(behind, axis=axis, keepdims=True), np.minimum(last + 1, most))
    return winner if keepdims else winner.squeeze(axis)


def value_at(data: Any, *, axis: int, keepdims: bool, least: bool) -> Any:
    """The value there."""
    values = np.take_along_axis(data, place_of(data, axis=axis, keepdims=True, least=least), axis)
    return values if keepdims else values.squeeze(axis)


class _Reduction(triton_interpreter.ReduceOps):
    """Triton's own, but for extremes with places."""

    def min_max(self, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        if idx_reduce_op is None or self.axis is None:
            return super().min_max(input, val_reduce_op, idx_reduce_op)
        arguments = {"axis": self.axis, "keepdims": self.keep_dims, "least": idx_reduce_op is np.argmin}
        data = input.handle.data
        return self.to_tensor(value_at(data, **arguments), input.dtype), self.to_tensor(
            place_of(data, **arguments), tl.int32
        )


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
        value, place = (
            functools.partial(each, axis=at, keepdims=keep_dims, least=least) for each in (value_at, place_of)
        )
        return _tensor(apply(value, data), first.dtype), _tensor(apply(place, data), tl.int32)
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
        return _Reduction(axis, combine_fn, keep_dims).apply(input)
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
