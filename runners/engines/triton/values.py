"""Stands for an array while a kernel is recorded: it computes, and notes what was computed from what.

Nothing but operations that do the same for every count of rows is let through, and what would tell Python a number is
asked of the recorder, so that a recording holds for whatever memory says next time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

# What a value depends on: on the numbers that the launch is given alone, also on addresses, or on what memory holds.
NUMBERS, ADDRESSES, MEMORY = 0, 1, 2


class NotRecorded(BaseException):
    """This kernel does what no recording has a form for. No Exception: device functions of Triton's interpreter catch
    those."""


class Recorder(Protocol):
    """The listener to all that is computed."""

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """The function's result, noted."""

    def forget(self, value: Value) -> None:
        """Nothing refers to this value any more."""

    def known(self, value: Value) -> Any:
        """The one value of a scalar [rows], which decides how the kernel goes on."""


class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """An array [rows, ...] that depends on what the launch is given. slot: where it is kept; number: which of the
    values kept there it is; by: what it depends on."""

    __slots__ = ("by", "data", "number", "recorder", "slot")

    def __init__(self, recorder: Recorder, data: Any, slot: int, number: int, by: int) -> None:
        self.recorder, self.data, self.slot, self.number, self.by = recorder, data, slot, number, by

    def __del__(self) -> None:
        self.recorder.forget(self)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def itemsize(self) -> int:
        return int(self.data.itemsize)

    @property
    def ndim(self) -> int:
        return int(self.data.ndim)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The number of rows is unknown here."""
        return (None, *self.data.shape[1:])

    def astype(self, dtype: Any) -> Any:
        return self.recorder.apply(_cast, (self, dtype))

    def view(self, dtype: Any) -> Any:
        return self.recorder.apply(_seen_as, (self, dtype))

    def __getitem__(self, key: Any) -> Any:
        if not (isinstance(key, tuple) and key[0] is Ellipsis):
            raise NotRecorded
        return self.recorder.apply(operator.getitem, (self, key))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or "out" in kwargs:
            raise NotRecorded
        return self.recorder.apply(functools.partial(ufunc, **kwargs) if kwargs else ufunc, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in _ROW_BY_ROW:
            raise NotRecorded
        return self.recorder.apply(functools.partial(function, **kwargs) if kwargs else function, args)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotRecorded

    __array__ = __bool__ = __index__ = __int__ = __float__ = __len__ = __iter__ = __setitem__ = _refuse


# With the axes that Triton's interpreter gives them, each row's result follows from that row.
_ROW_BY_ROW = {
    *(np.where, np.clip, np.expand_dims, np.transpose, np.swapaxes, np.flip),
    *(np.sum, np.min, np.max, np.nanmin, np.nanmax, np.argmin, np.argmax, np.cumsum, np.cumprod),
}


def _cast(data: Any, dtype: Any) -> Any:
    return data.astype(dtype)


def _seen_as(data: Any, dtype: Any) -> Any:
    return data.view(dtype)


def apply(function: Callable[..., Any], *operands: Any) -> Any:
    """The function's result; noted, if an operand stands for an array."""
    for operand in operands:
        if type(operand) is Value:
            return operand.recorder.apply(function, operands)
    return function(*operands)
