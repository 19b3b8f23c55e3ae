"""Programs of tensor operations for the tests of the emulated engine: drawn as plain numbers, run on any inputs.

Which operands an operation takes, and all shapes, follow from the program alone; every value follows from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

Tensors = list[torch.Tensor]

FLOATS = (torch.float32, torch.float16, torch.float64, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
ROOM = 4096  # elements; operations that grow stop there


@dataclass(frozen=True, slots=True)
class Operands:
    """Two tensors that exist so far, and a small number."""

    x: torch.Tensor
    y: torch.Tensor
    n: int

    @property
    def dim(self) -> int:
        """One of x's dimensions."""
        return self.n % max(1, int(self.x.dim()))

    @property
    def floats(self) -> torch.Tensor:
        """x as floats that are neither infinite nor too large to be cast."""
        values = self.x if self.x.dtype in (torch.float32, torch.float64) else self.x.float()
        return values.nan_to_num(0.5, 100, -100).clamp(-100, 100)

    @property
    def other(self) -> torch.Tensor:
        """y as something that x can be combined with."""
        if self.y.shape == self.x.shape:
            return self.y
        return self.x if not self.y.numel() else self.y.reshape(-1)[0]

    def indices(self, count: int, below: int) -> torch.Tensor:
        """`count` indices made of y's values: int64, in [0, below)."""
        values = Operands(self.y, self.x, self.n).floats.reshape(-1)
        if not values.numel():
            return torch.zeros(count, dtype=torch.int64)
        return values.repeat(-(-count // values.numel()))[:count].to(torch.int64).remainder(max(1, below))

    def writable(self) -> bool:
        return not any(stride == 0 and size > 1 for stride, size in zip(self.x.stride(), self.x.shape, strict=True))

    def written(self) -> torch.Tensor:
        """A value that may be written into x: y in x's shape and dtype, never in x's memory."""
        return cast(self.other, self.x.dtype).expand(self.x.shape).clone()


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast whose result is defined for every value."""
    if tensor.dtype.is_floating_point and not dtype.is_floating_point:
        tensor = Operands(tensor, tensor, 0).floats.abs()
    return tensor.to(dtype)


def _narrowed(o: Operands) -> torch.Tensor:
    size = o.x.shape[o.dim] if o.x.dim() else 0
    return o.x.narrow(o.dim, o.n % size, size - o.n % size) if size else o.x


def _index(o: Operands) -> torch.Tensor:
    """Rows of x by a tensor of indices."""
    return o.x[o.indices(4, o.x.shape[0])] if o.x.dim() and o.x.shape[0] else o.x


def _gathered(o: Operands) -> torch.Tensor:
    if not o.x.dim() or not o.x.numel():
        return o.x
    return o.x.gather(o.dim, o.indices(o.x.numel(), o.x.shape[o.dim]).view(o.x.shape))


def _matmul(o: Operands) -> torch.Tensor:
    flat = o.floats.float().reshape(-1)
    side = min(9, max(1, int(flat.numel() ** 0.5)))
    left = flat[: side * (flat.numel() // side)].view(side, -1)
    return left @ left.t()


def _grown(o: Operands) -> torch.Tensor:
    if o.x.numel() * 2 > ROOM:
        return o.x
    return torch.cat((o.x, cast(o.other, o.x.dtype).expand(o.x.shape)), dim=o.dim) if o.x.dim() else o.x.repeat(2)


def _filled(o: Operands) -> torch.Tensor:
    """An empty tensor that is written in two parts."""
    made = torch.empty_like(o.x, memory_format=torch.contiguous_format).view(-1)
    half = made.numel() // 2
    made[:half] = o.x.reshape(-1)[:half]
    made[half:] = 0
    return made.view(o.x.shape)


def _sorted(o: Operands) -> Tensors:
    return list(o.floats.sort(dim=-1, stable=True)) if o.x.dim() else [o.x]


def _topk(o: Operands) -> Tensors:
    flat = o.floats.reshape(-1)
    return list(flat.topk(min(flat.numel(), 1 + o.n % 4)))


def _split(o: Operands) -> Tensors:
    return list(o.x.split(1 + o.n % 3, dim=o.dim))[:3] if o.x.dim() else [o.x]


def _foreach(o: Operands) -> Tensors:
    return list(torch._foreach_add([o.floats, o.floats.t() if o.x.dim() == 2 else o.floats], 1.5))


def _out(o: Operands) -> torch.Tensor:
    made = torch.zeros(o.x.shape)
    torch.add(o.floats.float(), 2.0, out=made)
    return made


MAKES: dict[str, Callable[[Operands], torch.Tensor | Tensors]] = {
    # Views.
    "narrow": _narrowed,
    "transpose": lambda o: o.x.transpose(0, o.dim) if o.x.dim() else o.x,
    "flatten": lambda o: o.x.reshape(-1),
    "select": lambda o: o.x.select(o.dim, o.n % o.x.shape[o.dim]) if o.x.dim() and o.x.shape[o.dim] else o.x,
    "stride": lambda o: o.x[:: 1 + o.n % 3] if o.x.dim() else o.x[None],
    "expand": lambda o: o.x.unsqueeze(0).expand(2, *o.x.shape) if o.x.dim() < 4 and o.x.numel() < ROOM else o.x,
    "bits": lambda o: o.x.view(torch.int32) if o.x.dtype is torch.float32 else o.x.detach(),
    "split": _split,
    "unbind": lambda o: list(o.x.unbind(0))[:3] if o.x.dim() else [o.x],
    # New tensors, or the same one where there is nothing to do.
    "contiguous": lambda o: o.x.contiguous(),
    "clone": lambda o: o.x.clone(),
    "cast": lambda o: cast(o.x, DTYPES[o.n % len(DTYPES)]),
    "scalar": lambda o: o.floats * 1.25 + o.n,
    "integer": lambda o: cast(o.x, torch.int64) * 3 // (1 + o.n),
    "add": lambda o: o.floats + o.other,
    "compare": lambda o: o.floats > cast(o.other, torch.float32),
    "where": lambda o: torch.where(o.floats > 0, o.x, cast(o.other, o.x.dtype)),
    "clamp": lambda o: o.floats.clamp(-1, o.n),
    "cumsum": lambda o: o.floats.cumsum(o.dim),
    "softmax": lambda o: o.floats.float().softmax(o.dim),
    "sum": lambda o: o.floats.sum(o.dim, keepdim=bool(o.n & 1)),
    "mean": lambda o: o.floats.mean(),
    "argmax": lambda o: o.floats.reshape(-1).argmax() if o.x.numel() else o.x,
    "sort": _sorted,
    "topk": _topk,
    "matmul": _matmul,
    "cat": _grown,
    "stack": lambda o: torch.stack((o.x, o.x)) if o.x.numel() * 2 <= ROOM and o.x.dim() < 4 else o.x,
    "repeat": lambda o: o.x.repeat_interleave(2) if o.x.numel() * 2 <= ROOM else o.x,
    "index": _index,
    "gather": _gathered,
    "foreach": _foreach,
    "arange": lambda o: torch.arange(o.n) + o.x.numel(),
    "zeros": lambda o: o.x.new_zeros(o.x.shape),
    "full": lambda o: torch.full((o.n % 4, 3), 7.0),
    "filled": _filled,
    "out": _out,
}


def _index_add(o: Operands) -> None:
    if o.x.dim() and o.x.numel() and o.x.dtype is not torch.bool:
        rows = torch.ones((3, *o.x.shape[1:]), dtype=o.x.dtype)
        o.x.index_add_(0, o.indices(3, o.x.shape[0]), rows)


def _index_put(o: Operands) -> None:
    if o.x.dim() and o.x.numel():
        o.x[o.indices(1, o.x.shape[0])] = o.written()[:1]


def _scatter(o: Operands) -> None:
    if o.x.dim() and o.x.numel():
        place = o.indices(o.x.numel(), o.x.shape[o.dim]).view(o.x.shape)
        o.x.scatter_(o.dim, place, 1)


def _half(o: Operands) -> None:
    flat = o.x.view(-1) if o.x.is_contiguous() else o.x.reshape(-1)
    flat[: flat.numel() // 2].fill_(1)


def _moved(o: Operands) -> None:
    if o.x.dtype is torch.bool:
        o.x.logical_not_()
    else:
        o.x.add_(3)


def _foreach_written(o: Operands) -> None:
    if o.x.dtype.is_floating_point:
        torch._foreach_mul_([o.x, o.x.new_ones(3)], 0.5)


WRITES: dict[str, Callable[[Operands], object]] = {
    "add_": _moved,
    "copy_": lambda o: o.x.copy_(o.written()),
    "zero_": lambda o: o.x.zero_(),
    "set half": _half,
    "masked_fill_": lambda o: o.x.masked_fill_(o.x.float() > 0.5, 1),
    "set masked": lambda o: o.x.__setitem__(o.x.float() < 0, 1),
    "index_add_": _index_add,
    "index_put_": _index_put,
    "scatter_": _scatter,
    "foreach_": _foreach_written,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One operation and where its operands are, counted round the tensors that exist by then."""

    name: str
    x: int
    y: int
    n: int


Program = Sequence[Call]
_NUMBERS = st.integers(0, 30)


def programs(calls_max: int = 14) -> st.SearchStrategy[list[Call]]:
    names = st.sampled_from([*MAKES, *WRITES])
    return st.lists(st.builds(Call, names, _NUMBERS, _NUMBERS, st.integers(0, 11)), min_size=1, max_size=calls_max)


def run(program: Program, inputs: Tensors) -> Tensors:
    """Every tensor that there is in the end: the inputs, which the program may have written, and all it made."""
    values = list(inputs)
    for call in program:
        o = Operands(values[call.x % len(values)], values[call.y % len(values)], call.n)
        if call.name in MAKES:
            made = MAKES[call.name](o)
            values += [made] if isinstance(made, torch.Tensor) else made
        elif o.writable():
            WRITES[call.name](o)
    return values


def contents(seed: int) -> Tensors:
    """Inputs of several dtypes and ranks, one of them empty."""
    generator = torch.Generator().manual_seed(seed)
    floats = torch.randn(4, 6, generator=generator)
    if seed % 3 == 2:
        floats[1, 2], floats[2, 0] = float("nan"), float("-inf")
    return [
        floats,
        torch.randint(-50, 50, (3, 2, 4), generator=generator),
        torch.randn(5, generator=generator, dtype=torch.float16),
        torch.randint(0, 2, (7,), generator=generator, dtype=torch.bool),
        torch.randint(0, 9, (), generator=generator, dtype=torch.int32),
        torch.zeros(0, 3),
    ]


def bits(tensor: torch.Tensor) -> bytes:
    """The contents, such that equal NaNs are equal and zeros of different sign are not."""
    flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(torch.uint8).numpy())
