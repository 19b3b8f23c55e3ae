"""Kernels of several programs, for interpreted.py: what programs agree on, where they part, and what they do to each
other. ONE_BY_ONE are those whose programs cannot all be run at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.kernels.notes import note

ONE_BY_ONE = frozenset({"chained", "colliding", "racing_later", "counted", "widened", "failing"})


@triton.jit
def parting(out_ptr, lengths_ptr, scale, BLOCK: tl.constexpr):
    """Loops, branches and a while whose bounds differ among programs; stores before and behind them."""
    here = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    at = tl.arange(0, BLOCK)
    length = tl.load(lengths_ptr + here)
    tl.store(out_ptr + here * 2 * BLOCK + at, at * here)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(length):
        total += at * scale + i
    if length > 2:
        total += 100
    elif here == 1:
        total -= 0.5
    left = length
    while left > 1:
        left = left // 2
        total *= 1 + left
    tl.store(out_ptr + (here * 2 + 1) * BLOCK + at, total, mask=at < length)


@triton.jit
def shaped(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Two-dimensional blocks of each program: products, transposes, reductions along both axes, scans."""
    here = tl.program_id(0)
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + here * M * N + rows[:, None] * N + columns[None, :])
    y = tl.load(y_ptr + rows[:, None] * N + columns[None, :])
    product = tl.dot(x, tl.trans(y)) + tl.dot(y, x.T)
    rowwise = tl.sum(x * y, axis=1) + tl.max(x, 1) * here + tl.min(y, axis=1)
    columnwise = tl.sum(x + here, axis=0) - tl.max(x * here, axis=0)
    scanned = tl.cumsum(x, axis=1) + tl.cumsum(y, axis=0) * here
    best = tl.argmax(x, axis=1) + tl.argmin(y, axis=1)
    start = out_ptr + here * (M * M + 2 * M + N + M * N)
    tl.store(start + rows[:, None] * M + rows[None, :], product)
    tl.store(start + M * M + rows, rowwise)
    tl.store(start + M * M + M + columns, columnwise)
    tl.store(start + M * M + M + N + rows[:, None] * N + columns[None, :], scanned)
    tl.store(start + M * M + M + N + M * N + rows, best + tl.sum(tl.where(x > y, rows[:, None] + here, -1), axis=1))


@triton.jit
def in_place(x_ptr, BLOCK: tl.constexpr):
    """Each program reads again what it wrote itself."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) * 2)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + tl.program_id(0), mask=at % 2 == 0)


@triton.jit
def uniform(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """All programs write the same values to the same place."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def chained(x_ptr, BLOCK: tl.constexpr):
    """Each program reads what the one before it wrote."""
    at = tl.program_id(0) + tl.arange(0, BLOCK)
    tl.store(x_ptr + at + 1, tl.load(x_ptr + at) * 3)


@triton.jit
def colliding(out_ptr, BLOCK: tl.constexpr):
    """The last program's values stay."""
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.arange(0, BLOCK) + 10 * tl.program_id(0))


@triton.jit
def racing_later(out_ptr, lengths_ptr, BLOCK: tl.constexpr):
    """The same across groups that part, by another statement."""
    at = tl.arange(0, BLOCK)
    here = tl.program_id(0)
    tl.store(out_ptr + BLOCK * here + at, at)
    if tl.load(lengths_ptr + here) > 2:
        tl.store(out_ptr + BLOCK * (here + 1) + at, at * 7)


@triton.jit
def counted(out_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, BLOCK), tl.program_id(0) + 1)


@triton.jit
def widened(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """A pointer made of a number: whose memory it is in, nobody knows any more."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    narrow = tl.cast(tl.cast(out_ptr, tl.int64), tl.pointer_type(tl.uint8))
    tl.store(narrow + at, tl.load(x_ptr + at))


@triton.jit
def failing(out_ptr, BLOCK: tl.constexpr):
    """The third program asks for what cannot be; the two before it have stored."""
    tl.store(out_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK) + 1)
    if tl.program_id(0) == 2:
        tl.store(out_ptr + tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK))


def programs() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([5, 0, 3, 3, 1, 7], dtype=torch.int32)
    for grid in ((6,), (2, 3)):
        parting[grid](out := torch.zeros(6 * 2 * 8), lengths, 0.5, 8)
        note(f"parting {grid}", out)
    for kind in (torch.float32, torch.float16):
        x, y = torch.randn(5, 16, 32, generator=generator).to(kind), torch.randn(16, 32, generator=generator).to(kind)
        shaped[(5,)](x[:, :, :16], y, out := torch.zeros(5, 16 * 16 * 2 + 3 * 16), 16, 16)
        note(f"shaped {kind}", out)
    in_place[(4,)](x := torch.arange(32.0), 8)
    note("in place", x)
    uniform[(4,)](x, out := torch.zeros(8), 8)
    note("uniform", out)
    chained[(4,)](x := torch.arange(1.0, 17.0), 4)
    note("chained", x)
    colliding[(4,)](out := torch.zeros(8, dtype=torch.int32), 8)
    note("colliding", out)
    racing_later[(6,)](out := torch.zeros(7 * 4, dtype=torch.int32), lengths, 4)
    note("racing later", out)
    counted[(4,)](out := torch.zeros(8, dtype=torch.int32), 8)
    note("counted", out)
    widened[(4,)](torch.arange(32, dtype=torch.uint8), out := torch.zeros(32, dtype=torch.int8), 8)
    note("widened", out)
    out = torch.zeros(40, dtype=torch.int32)
    try:
        failing[(4,)](out, 8)
    except Exception as error:
        note(f"failing {type(error).__name__}", out)
