"""Kernels that are launched again and again with other contents, for interpreted.py: what was recorded of the first
launches has to hold for the later ones. RECORDED are those that must have been, for as long as they were launched."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton's kernels: their parameters are tensors or numbers, as it comes, and have no types that could be written.

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.kernels.notes import function, note
from tests.kernels.of_programs import parting, shaped

RECORDED = frozenset({"calculated", "parting", "shaped", "split", "placed", "scaled_by", "narrowed", "picked"})
UNARY = ("exp", "exp2", "log", "sqrt", "rsqrt", "abs", "neg", "sigmoid", "floor", "ceil", "cumsum")
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "minimum", "maximum"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "xor", "lshift", "rshift"),
)
WHOLE = ("and_", "or_", "xor", "lshift", "rshift", "floordiv")


@triton.jit
def calculated(x_ptr, y_ptr, out_ptr, operation: tl.constexpr, form: tl.constexpr, N: tl.constexpr):
    """One operation on two blocks, on a block and a scalar, on a column and a row."""
    here, at = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + here * N + at)
    y = tl.load(y_ptr + at)
    if form == "one":
        result = getattr(tl, operation)(x) if hasattr(tl, operation) else function(operation)(x)
    elif form == "blocks":
        result = function(operation)(x, y)
    elif form == "scalar":
        result = function(operation)(x, tl.load(y_ptr + here))
    elif form == "constant":
        result = function(operation)(x, 3)
    else:
        result = function(operation)(x[:, None], y[None, :])
        tl.store(out_ptr + (here * N + at[:, None]) * N + at[None, :], result)
    if form != "matrix":
        tl.store(out_ptr + here * N + at, result)


@triton.jit
def split(x_ptr, lengths_ptr, out_ptr, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Programs share a row, and each goes over its own part of it, from where to where memory says."""
    row, part = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths_ptr + row)
    start = part * SIZE
    stop = tl.minimum(start + SIZE, length)
    total = tl.zeros((BLOCK,), tl.float32)
    if stop > start:
        for first in range(start, stop, BLOCK):
            first = tl.multiple_of(first, BLOCK)
            at = first + tl.arange(0, BLOCK)
            total += tl.load(x_ptr + row * 64 + at, mask=at < stop, other=0.5) * scale + first
        for turn in range(0, stop - start, 3):
            total += turn
    place = row * tl.num_programs(1) + part
    tl.store(out_ptr + place * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def placed(table_ptr, out_ptr, BLOCK: tl.constexpr):
    """A table says where a program writes, and reads again: programs may meet."""
    here, at = tl.program_id(0), tl.arange(0, BLOCK)
    place = out_ptr + tl.load(table_ptr + here) + at
    tl.store(place, tl.load(place) * 2 + here + 1)


@triton.jit
def scaled_by(x_ptr, out_ptr, count, scale, flag: tl.constexpr, nothing, N: tl.constexpr):
    """Numbers that a launch is given, one of them none."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < count, other=-1)
    if count > 9:
        x *= 2
    if flag:
        x += 100
    if nothing is not None:
        x += tl.load(nothing + tl.program_id(0))
    tl.store(out_ptr + at, x * scale + count)


@triton.jit
def narrowed(x_ptr, out_ptr, N: tl.constexpr):
    """From one kind of number to another and back, by memory."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.float32).to(out_ptr.dtype.element_ty))


@triton.jit
def picked(x_ptr, mask_ptr, out_ptr, N: tl.constexpr):
    """Blocks that are cut, joined and turned; a mask out of memory."""
    here, at = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + here * N + at)
    keep = tl.load(mask_ptr + here * N + at)
    both = tl.join(x, tl.where(keep, x, -x))
    left, right = tl.split(both)
    turned = tl.trans(tl.reshape(tl.cat(left, right, can_reorder=True), (2, N)))
    tl.store(out_ptr + here * 2 * N + tl.arange(0, 2 * N), tl.reshape(turned, (2 * N,)))
    tl.store(out_ptr + here * 2 * N + at, right, mask=keep)


def _numbers(kind: torch.dtype, generator: torch.Generator, *shape: int) -> torch.Tensor:
    if kind.is_floating_point:
        return torch.randn(*shape, generator=generator).to(kind)
    return torch.randint(1, 7, shape, generator=generator).to(kind)


def _calculations(turn: int, generator: torch.Generator) -> None:
    for kind in (torch.float32, torch.float16, torch.int32, torch.int64):
        forms = {
            "one": ("neg", "abs", "cumsum") if not kind.is_floating_point else UNARY if kind is torch.float32 else (),
            **dict.fromkeys(("blocks", "scalar", "constant", "matrix"), BINARY),
        }
        for form, operations in forms.items():
            for operation in operations:
                if (kind.is_floating_point and operation in WHOLE) or (
                    not kind.is_floating_point and operation == "truediv"
                ):
                    continue
                x, y = _numbers(kind, generator, 3, 8), _numbers(kind, generator, 8)
                out = torch.zeros(3 * 8 * (8 if form == "matrix" else 1), dtype=kind)
                calculated[(3,)](x, y, out, operation, form, 8)
                note(f"again {turn} {operation} {form} {kind}", out)


def again() -> None:
    generator = torch.Generator().manual_seed(9)
    for turn in range(4):
        _calculations(turn, generator)
        for grid in ((6,), (2, 3), (3, 1)):
            lengths = torch.randint(0, 8, (6,), generator=generator, dtype=torch.int32)
            parting[grid](out := torch.zeros(6 * 2 * 8), lengths, 0.5, 8)
            note(f"again {turn} parting {grid}", out)
        for rows, parts in ((3, 4), (1, 1), (5, 2)):
            lengths = torch.randint(0, 64, (rows,), generator=generator, dtype=torch.int32)
            x, out = torch.randn(rows, 64, generator=generator), torch.zeros(rows, parts, 8)
            split[(rows, parts)](x, lengths, out, 0.25, 16, 8)
            note(f"again {turn} split {rows} {parts}", out)
        for kind in (torch.float32, torch.float16):
            x = _numbers(kind, generator, 5, 16, 16)
            y = _numbers(kind, generator, 16, 16)
            shaped[(5,)](x, y, out := torch.zeros(5, 16 * 16 * 2 + 3 * 16), 16, 16)
            note(f"again {turn} shaped {kind}", out)
        # Programs meet in the second turn: the last one's values stay, and each reads what those before it wrote.
        table = torch.tensor([0, 8, 16, 24] if turn != 1 else [0, 4, 8, 4])
        placed[(4,)](table, out := torch.arange(40, dtype=torch.int32), 8)
        note(f"again {turn} placed", out)
        for count, scale, flag, nothing in (
            *((8 + turn, 1.5 + turn, turn == 2, None), (2**31 + turn, 2, False, None)),
            (2**40 + turn, -0.0, True, torch.arange(4.0) * turn),
        ):
            x = torch.randn(16, generator=generator)
            scaled_by[(4,)](x, out := torch.zeros(16), count, scale, flag, nothing, 4)
            note(f"again {turn} scaled {count} {scale}", out)
        for source, result in (
            (torch.bfloat16, torch.float16),
            (torch.float32, torch.bfloat16),
            (torch.int32, torch.bfloat16),
        ):
            x = (100 * torch.randn(16, generator=generator)).to(source)
            narrowed[(4,)](x, out := torch.zeros(16, dtype=result), 4)
            note(f"again {turn} narrowed {source} {result}", out)
        keep = torch.randint(0, 2, (3, 8), generator=generator).bool()
        picked[(3,)](_numbers(torch.float32, generator, 3, 8), keep, out := torch.zeros(3, 16), 8)
        note(f"again {turn} picked", out)
