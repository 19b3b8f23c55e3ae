"""Kernels that read and write, and that are launched in many ways: for interpreted.py."""

# ruff: noqa: B023  (every lambda is called before its loop goes on)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.kernels.notes import RESULTS, VALUES, N, attempt, function, given, note

# By name, because Triton rebinds its functions while a kernel runs.
ATOMICS = ("atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_and", "atomic_xor")


@triton.jit
def pointers(x_ptr, out_ptr, name, stride, offset, small: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    far = at.to(tl.int64)
    middle = x_ptr + N
    attempt(f"{name} negative", lambda: tl.load(middle + (at - 8)))
    attempt(f"{name} minus", lambda: tl.load(middle - at))
    attempt(f"{name} minus constant", lambda: tl.load(middle + at - 3))
    attempt(f"{name} far", lambda: tl.load(x_ptr + far * stride))
    attempt(f"{name} far negative", lambda: tl.load(middle + -far))
    attempt(f"{name} added left", lambda: tl.load(at + x_ptr))
    attempt(f"{name} argument", lambda: tl.load(x_ptr + offset + at))
    attempt(f"{name} scalar", lambda: tl.load(x_ptr + offset))
    attempt(f"{name} scalar of a block", lambda: tl.load(x_ptr + tl.sum(at, axis=0) // 4))
    grid = x_ptr + at[:, None] * stride + tl.arange(0, 2)[None, :]
    attempt(f"{name} grid", lambda: tl.load(grid))
    attempt(f"{name} grid moved", lambda: tl.load(grid + offset + small))
    attempt(f"{name} rows", lambda: tl.load(x_ptr + at[:, None] + tl.zeros((1, 2), tl.int32)))
    block = x_ptr + at
    block += 2
    attempt(f"{name} moved", lambda: tl.load(block))
    block += at
    attempt(f"{name} moved by a block", lambda: tl.load(block))
    attempt(f"{name} masked", lambda: tl.load(block, mask=at < 3, other=0))
    attempt(f"{name} masked by a scalar", lambda: tl.load(block, mask=offset < 0, other=7))
    attempt(f"{name} masked with a block", lambda: tl.load(block, mask=at % 2 == 0, other=tl.load(x_ptr + at)))
    attempt(
        f"{name} masked grid",
        lambda: tl.load(grid, mask=(at < 2)[:, None] & (tl.arange(0, 2) < offset)[None, :], other=1),
    )
    attempt(f"{name} address", lambda: (x_ptr + at).to(tl.int64) - x_ptr.to(tl.int64))
    attempt(f"{name} compared", lambda: (x_ptr + at) == (x_ptr + offset))
    tl.store(out_ptr + at, tl.load(x_ptr + at) + small)
    tl.store(out_ptr + N + at, tl.load(x_ptr + at), mask=at > 4)
    tl.store(out_ptr + 2 * N + offset, tl.load(x_ptr))
    tl.store(out_ptr + 3 * N + at, 2)
    tl.store(out_ptr + 4 * N + at // 2, tl.load(x_ptr + at), mask=at != 1)
    tl.store(out_ptr + 5 * N + far[:, None] * 2 + tl.arange(0, 2)[None, :], tl.load(x_ptr + at)[:, None])


@triton.jit
def atomics(x_ptr, out_ptr, name, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    for operation in ATOMICS:
        # What it returns where the mask is off is undefined.
        attempt(f"{name} {operation}", lambda: tl.where(at != 2, function(operation)(out_ptr + at % 3, x, at != 2), x))
        attempt(f"{name} {operation} scalar", lambda: function(operation)(out_ptr + 4, tl.load(x_ptr + 1)))
    attempt(f"{name} cas", lambda: tl.atomic_cas(out_ptr + 5, tl.load(x_ptr), tl.load(x_ptr + 1)))


def memory() -> None:
    for kind in VALUES:
        x, out = torch.cat([given(kind, turn) for turn in range(6)]), torch.zeros(8 * N, dtype=getattr(torch, kind))
        pointers[(1,)](x, out, kind, 2, 1, 3, N=N)
        note(f"{kind} stored", out)
        pointers[(1,)](x[3:], out[1:], f"{kind} view", 1, 1, small=1, N=N, num_warps=1)
        note(f"{kind} stored view", out)
        pointers[(1,)](x.view(6, N).t()[1:3], out, f"{kind} strided", 3, 1, small=0, N=N)
        note(f"{kind} stored strided", out)
        out.zero_()
        atomics[(1,)](x, out, kind, N)
        note(f"{kind} after atomics", out)


@triton.jit
def halved(x, by=2):
    return x // by, x % by


@triton.jit
def scaled(x, factor: tl.constexpr):
    if factor > 1:
        return x * factor
    return x


@triton.jit
def control(out_ptr, count_ptr, scale, flag: tl.constexpr, nothing, rounds: tl.constexpr, BLOCK: tl.constexpr = 4):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(axis=2)
    wide, high = tl.num_programs(0), tl.num_programs(axis=1)
    here = (z * high + y) * wide + x
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    count = tl.load(count_ptr + here % 3)
    for i in range(count):
        total += at * scale + i
    for i in range(0, count, 2):
        total -= i
    for i in tl.static_range(rounds):
        total *= 1 + i
    left = count
    while left > 1:
        left = left // 2
        total += left
    if here % 2 == 0 and flag:
        total += 100
    elif count > 2:
        total = total - 0.5
    if nothing is not None:
        total += 1000
    quotient, rest = halved(here + 7)
    more, _ = halved(count, 3)
    total += quotient * 10 + rest + more + scaled(at, 3) + scaled(at, 1) + tl.cdiv(here, BLOCK)
    tl.store(out_ptr + here * BLOCK + at, total)
    tl.atomic_add(count_ptr + 3, here)


@triton.jit
def broken(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), tl.arange(0, 2 * N))


def launches() -> None:
    for grid in ((2, 3, 2), (5,), (2, 2), lambda meta: (meta["rounds"], meta["BLOCK"])):
        for arguments, given_ in (
            ((0.5, True, None, 2), {}),
            ((3, False, 1), {"rounds": 1, "BLOCK": 8}),
            ((-1.5, True), {"nothing": None, "rounds": 3, "BLOCK": 2, "num_stages": 2, "num_warps": 4}),
        ):
            out, counts = torch.zeros(12 * 8), torch.tensor([5, 0, 3, 0])
            name = f"{'callable' if callable(grid) else grid} {arguments} {given_}"
            control[grid](out, counts, *arguments, **given_)
            note(f"control {name}", out)
            note(f"control counts {name}", counts)
    out = torch.zeros(4, dtype=torch.int32)
    try:
        broken[(1,)](out, 4)
    except Exception as error:
        RESULTS["broken"] = [type(error).__name__, "", "", ""]
    note("broken, until then", out)
    numbers = torch.arange(4)
    control[(3,)](out := torch.zeros(12), numbers, 2**40, 0, numbers, 1)  # an integer that needs 64 bits
    note("after one that broke", out)
