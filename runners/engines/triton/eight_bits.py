"""Numbers of eight bits in Triton's interpreter, as GPUs convert them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter


class EightBits:
    """One type of numbers of eight bits. values: what each of the 256 stands for."""

    def __init__(self, kind: torch.dtype) -> None:
        self.values = np.array(torch.arange(256, dtype=torch.uint8).view(kind).to(torch.float32).tolist(), np.float32)
        largest = int(np.nanargmax(np.where(np.isfinite(self.values), self.values, np.nan)))
        finite = self.values[: largest + 1].astype(np.float64)
        self._between = (finite[1:] + finite[:-1]) / 2
        self._none = np.uint8(np.flatnonzero(np.isnan(self.values))[-1])

    def nearest(self, numbers: Any) -> Any:
        """To even of two as near, to the largest what is beyond it."""
        sizes = np.abs(numbers.astype(np.float64))
        codes = np.searchsorted(self._between, sizes)
        halfway = self._between[np.minimum(codes, len(self._between) - 1)] == sizes
        codes = codes + (halfway & (codes % 2 == 1))
        return np.where(np.isnan(numbers), self._none, codes | np.signbit(numbers) << 7).astype(np.uint8)


EIGHT_BITS = {"fp8e4nv": EightBits(torch.float8_e4m3fn), "fp8e5": EightBits(torch.float8_e5m2)}


def converting(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers of eight bits as GPUs convert them. Triton's interpreter drops what is below a normal number and takes
    what is none for a large one."""

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        narrow, wide = EIGHT_BITS.get(target.name), EIGHT_BITS.get(source.name)
        if narrow is wide is None:
            return slow(data, source, target, rounding)
        numbers = wide.values[data] if wide else data if source.name != "bf16" else _widened(slow, data, source)
        if narrow:
            return narrow.nearest(numbers)
        if target.name == "bf16":
            return slow(numbers, tl.float32, target, rounding)
        made = numbers.astype(triton_interpreter._get_np_dtype(target))
        return made.view(f"u{made.itemsize}")

    return convert


def _widened(slow: Callable[..., Any], data: Any, dtype: Any) -> Any:
    return slow(data, dtype, tl.float32, None).view(np.float32)
