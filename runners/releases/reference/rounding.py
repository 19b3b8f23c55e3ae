"""Arithmetic in float64 beside samples of what rounding makes of it.

Every value is [1 + SAMPLES, ...]: in front the exact result, behind it results in which each operation that a kernel
may round was moved within its rounding's reach, drawn anew for every element and sample (Monte Carlo arithmetic:
Parker 1997). All later operations act on the samples as they do on the exact values, so each carries its rounding
errors through the layers with their signs, cancellations and common causes. See bounds.py for what follows from them.

An operation that some kernels round and others do not is taken to round.
"""

from __future__ import annotations

import copy
import functools
import random
from dataclasses import dataclass

import torch

# Enough that the spread of a value is known within some 9 %, which bounds.py allows for.
SAMPLES = 64
# Draws are cut from a pool, which is cheaper than drawing; each cut begins elsewhere.
_POOL_SIZE, _PREPARED = 1 << 19, 1 << 22
_drawn = [torch.empty(0, dtype=torch.float64)]  # the pool

SINGLE = 2.0**-24
# Of a float32, the smallest number that is not subnormal: kernels may take what lies below it for zero.
SINGLE_SMALLEST = 2.0**-126
# NVIDIA's tensor cores take the first ten bits behind the point of a float32 and drop the rest.
TENSOR_FLOAT_32 = 2.0**-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A floating-point type. unit: half the distance from 1.0 to the next value. tiny: half the smallest distance
    between two of its values. largest: its largest finite value."""

    unit: float
    tiny: float
    largest: float


FORMATS = {
    torch.float32: Format(unit=2.0**-24, tiny=2.0**-150, largest=torch.finfo(torch.float32).max),
    torch.float16: Format(unit=2.0**-11, tiny=2.0**-25, largest=torch.finfo(torch.float16).max),
    torch.bfloat16: Format(unit=2.0**-8, tiny=2.0**-134, largest=torch.finfo(torch.bfloat16).max),
    torch.float8_e4m3fn: Format(unit=2.0**-4, tiny=2.0**-10, largest=torch.finfo(torch.float8_e4m3fn).max),
    torch.float8_e5m2: Format(unit=2.0**-3, tiny=2.0**-17, largest=torch.finfo(torch.float8_e5m2).max),
}


class Rounding:
    """The rounding of each operation. format: of the model's values. kv: of the KV cache. tensor_cores: products
    of attention are made by tensor cores, also of float32; linear_on_cores: those of linear layers, too, as sglang's
    kernel for them is written in Triton where inference is deterministic (batch_invariant_ops.py, `tl.dot`). splits:
    sums of half precision may be kept in halves in two parts. All tensors are on the host."""

    def __init__(
        self,
        dtype: torch.dtype,
        kv_dtype: torch.dtype | None = None,
        *,
        on_gpu: bool,
        seed: int,
        deterministic: bool = False,
        samples: int = SAMPLES,
    ) -> None:
        self.samples = samples
        self.format = FORMATS[dtype]
        self.kv = FORMATS[kv_dtype or dtype]
        self.tensor_cores = on_gpu and dtype == torch.float32
        self.linear_on_cores = self.tensor_cores and deterministic
        self.splits = on_gpu and dtype != torch.float32
        self._draw = random.Random(seed)
        self._dtype, self._to_nearest = dtype, False

    def halved(self) -> Rounding:
        """The same where what would be kept in float32 is kept in float16."""
        other = copy.copy(self)
        if self.format is FORMATS[torch.float32]:
            other.format = FORMATS[torch.float16]
            other.kv = other.format if self.kv is self.format else self.kv
        return other

    def nearest(self) -> Rounding:
        """A rounding of each value, exact ones included, to the nearest one of the model's type."""
        other = copy.copy(self)
        other._to_nearest = True
        return other

    def exact(self, values: torch.Tensor) -> torch.Tensor:
        """Values that are given, and not computed: alike in all samples."""
        return values.to(torch.float64).expand(1 + self.samples, *values.shape)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Stored in the model's type. What rounding can take beyond that type's values is not a number in any sample,
        and so is all that is made of it: how kernels go on from an infinity hangs on which of them round."""
        if self._to_nearest:
            return values.to(self._dtype).to(torch.float64)
        return self._stored(values, self.format)

    def cached(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the model's type as the KV cache keeps them, and as kernels take what meets them there."""
        return values if self.kv is self.format else self._stored(values, self.kv)

    def _stored(self, values: torch.Tensor, format: Format) -> torch.Tensor:
        moved = self.moved(values, furthest(values[0], format))
        if not moved.numel():
            return moved
        least, most = torch.aminmax(moved)
        if -format.largest <= float(least) and float(most) <= format.largest:
            return moved
        return moved.masked_fill((moved.abs() > format.largest).any(dim=0), torch.nan)

    def reach(self, at: torch.Tensor) -> torch.Tensor:
        """The distance by which rounding to the model's type can move values of this size."""
        return furthest(at, self.format)

    def moved(self, values: torch.Tensor, reach: torch.Tensor | float) -> torch.Tensor:
        """Each sample moved by as much as `reach` ([...], without samples) up or down, each element by its own."""
        moved = torch.empty(values.shape, dtype=values.dtype)
        moved[0] = values[0]
        # Where they go: what is large is passed over twice, and nothing else of its size is asked for.
        samples = moved[1:]
        torch.mul(self._noise((self.samples, *values.shape[1:])), reach, out=samples)
        samples += values[1:]
        return moved

    def moved_together(self, values: torch.Tensor, relative: float) -> torch.Tensor:
        """Rows (the last dimension) whose elements share one factor that is off by as much as `relative`."""
        factor = 1 + relative * self._noise((self.samples, *values.shape[1:-1], 1))
        moved = values.clone(memory_format=torch.contiguous_format)
        moved[1:] *= factor
        return moved

    def _noise(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Evenly drawn from -1 to 1."""
        count = functools.reduce(int.__mul__, shape, 1)
        pool = _pool(max(_POOL_SIZE, 1 << (2 * count).bit_length()))
        start = self._draw.randrange(len(pool) - count)
        return pool[start : start + count].view(shape)


def furthest(at: torch.Tensor, format: Format) -> torch.Tensor:
    """The distance by which rounding can move values of this size: half of that to the next one."""
    return half_steps(at, format.unit).clamp(min=format.tiny)


def half_steps(values: torch.Tensor, unit: float) -> torch.Tensor:
    """Half the distance from these float64 values to the next ones of a type with this unit roundoff: the power of two
    at or below each, times the unit. Zero for zero."""
    exponents = values.contiguous().view(torch.int64) & 0x7FF0000000000000
    return exponents.view(torch.float64) * unit


def prepare() -> None:
    """Draw what most opinions need in the process that sessions are forked from."""
    _pool(_PREPARED)


def _pool(size: int) -> torch.Tensor:
    """So many, always the same: what a case is judged by does not depend on what ran before it. They are the first of
    the largest pool that was drawn, which one generator draws in order."""
    if len(_drawn[0]) < size:
        generator = torch.Generator().manual_seed(1)
        _drawn[0] = torch.rand(size, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    return _drawn[0][:size]
