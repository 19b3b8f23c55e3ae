"""Memory that was never written: while a Poisoned is entered, torch.empty and its like return recognisable garbage."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
UNINITIALISED = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}


class Poisoned(TorchDispatchMode):
    """Fills what would be left to the allocator: integers with `number`, floats with NaN, booleans with True.

    The number is the caller's, so that it can be one that does harm without a crash: garbage that points into a
    neighbour is what a real allocator gives after a while. Functions under torch.compile run uncompiled meanwhile.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in UNINITIALISED:
            result.fill_(_garbage(result.dtype, self._number))
        return result


def _garbage(dtype: torch.dtype, number: int) -> float | int | bool:
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype is torch.bool else number & (torch.iinfo(dtype).max)
