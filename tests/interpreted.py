"""Run the same Triton kernels under Triton's own interpreter and under ours: python interpreted.py FOLDER [sglang].

What every operation gave goes to FOLDER/plain.json and FOLDER/ours.json: name -> type, shape and bytes. Each runs in
a process forked from this one, because ours is never taken back out. Needs TRITON_INTERPRET=1.
"""

# ruff: noqa: B023  (every lambda is called before its loop goes on)

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from runners.engines import emulated, interpreter, standins
from runners.releases import catalogue

Results = dict[str, list[str]]
RESULTS: Results = {}
N = 8


def note(name: str, value: Any) -> None:
    """Keep a tensor of a running kernel, or of memory, under a name of its own."""
    assert name not in RESULTS, name
    if isinstance(value, torch.Tensor):
        kind, data = "memory", value.detach().clone().view(torch.uint8).numpy()
    else:
        kind, data = str(value.type), value.handle.data
    RESULTS[name] = [kind, str(data.dtype), str(data.shape), np.ascontiguousarray(data).tobytes().hex()]


def attempt(name: str, work: Callable[[], Any]) -> None:
    """Keep what this gives, or that it cannot be done."""
    try:
        value = work()
    except Exception as error:
        RESULTS[name] = ["raised", type(error).__name__, "", str(error).splitlines()[0] if str(error) else ""]
    else:
        note(name, value)


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(operator, name, None) or getattr(tl, name)
    return found


# Arithmetic ------------------------------------------------------------------------------------------------------

# By name, because Triton rebinds its functions while a kernel runs.
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"),
    # The shifts last: under Triton's interpreter they change their operands.
    *("and_", "or_", "xor", "minimum", "maximum", "lshift", "rshift"),
)
UNARY = ("neg", "invert", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "floor", "ceil", "sigmoid")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "cumsum", "cumprod")
ATOMICS = ("atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_and", "atomic_xor")
CONSTANTS = (1, -1, 3, -7, 100, 2**15, -(2**31), 2**31 - 1, 2**31, 2**33 + 1, -(2**40), 0.5, -2.25, 0.1, 1e10, True)
# No zero among what is divided by; at both ends what overflows, and floats that are rounded.
VALUES: dict[str, list[float]] = {
    "int8": [-128, 127, -1, 1, 5, -7, 64, 99],
    "uint8": [255, 1, 2, 128, 200, 7, 31, 3],
    "int16": [-(2**15), 2**15 - 1, -1, 1, 300, -300, 77, 2],
    "int32": [-(2**31), 2**31 - 1, -1, 1, 65536, -65537, 12345, 7],
    "int64": [-(2**63), 2**63 - 1, -1, 1, 2**31, -(2**33), 2**53 + 1, 3],
    "float16": [0.1, -2.5, 65504.0, 6e-8, -1.0, 1.0, 3.14159, 2048.0],
    "float32": [0.1, -2.5, 3.4e38, 1e-45, -1.0, 16777217.0, 3.14159, -0.0078125],
    "float64": [0.1, -2.5, 1e308, 5e-324, -1.0, 9007199254740993.0, 3.14159, 1e-3],
}


def given(kind: str, turn: int = 0) -> torch.Tensor:
    values = VALUES[kind]
    return torch.tensor(values[turn:] + values[:turn], dtype=getattr(torch, kind))


@triton.jit
def combine(x_ptr, y_ptr, name, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    a = tl.load(x_ptr + 4)
    b = tl.load(y_ptr + 5)
    for operation in BINARY:
        for form, left, right in (
            *(("block block", x, y), ("block scalar", x, b), ("scalar block", a, y), ("scalar scalar", a, b)),
            *(("column row", x[:, None], y[None, :]), ("matrix scalar", x[None, :], b), ("self", x, x)),
        ):
            attempt(f"{name} {operation} {form}", lambda: function(operation)(left, right))


@triton.jit
def constants(x_ptr, name, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    a = tl.load(x_ptr + 4)
    for operation in BINARY:
        for value in CONSTANTS:
            for form, tensor in (("block", x), ("scalar", a), ("matrix", x[:, None])):
                attempt(f"{name} {operation} {form} {value}", lambda: function(operation)(tensor, value))
                attempt(f"{name} {value} {operation} {form}", lambda: function(operation)(value, tensor))
                attempt(
                    f"{name} {operation} {form} constexpr {value}",
                    lambda: function(operation)(tensor, tl.constexpr(value)),
                )


@triton.jit
def unary(x_ptr, name, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    a = tl.load(x_ptr + 4)
    for form, tensor in (("block", x), ("scalar", a)):
        for operation in UNARY:
            attempt(f"{name} {operation} {form}", lambda: function(operation)(tensor))
        for kind in (tl.int8, tl.uint8, tl.int16, tl.int32, tl.uint32, tl.int64, tl.float16, tl.float32, tl.float64):
            attempt(f"{name} to {kind} {form}", lambda: tensor.to(kind))
            attempt(f"{name} as bits of {kind} {form}", lambda: tensor.to(kind, bitcast=True))
        attempt(f"{name} to int1 {form}", lambda: tensor.to(tl.int1))
        attempt(f"{name} clamped {form}", lambda: tl.clamp(tensor, -1.0, 1.0))
        attempt(f"{name} fma {form}", lambda: tl.fma(tensor, tensor, a))


def arithmetic() -> None:
    for left in VALUES:
        constants[(1,)](given(left), left, N)
        unary[(1,)](given(left), left, N)
        for right in VALUES:
            combine[(1,)](given(left), given(right, 3), f"{left} {right}", N)


# Shapes ----------------------------------------------------------------------------------------------------------


@triton.jit
def shapes(x_ptr, name, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    a = tl.load(x_ptr)
    m = tl.reshape(x, (2, 4))
    attempt(f"{name} matrix", lambda: m)
    attempt(f"{name} cube", lambda: x[:, None, None] + m[None, :, :])
    attempt(f"{name} long cube", lambda: m + tl.reshape(x, (8, 1, 1)))
    attempt(f"{name} transposed", lambda: tl.trans(m))
    attempt(f"{name} expanded", lambda: tl.expand_dims(x, 1))
    attempt(f"{name} broadcast", lambda: tl.broadcast_to(x[None, :], (4, N)))
    attempt(f"{name} broadcast scalar", lambda: tl.broadcast_to(a, (2, 4)))
    attempt(f"{name} spread and combined", lambda: tl.broadcast_to(x[:, None], (N, 4)) * tl.broadcast_to(a, (N, 4)))
    attempt(f"{name} full", lambda: tl.full((2, 4), 3, x.dtype) + m)
    attempt(f"{name} zeros", lambda: tl.zeros((N,), x.dtype) + x)
    attempt(f"{name} zeros and scalar", lambda: tl.zeros((N,), x.dtype) + a)
    attempt(f"{name} where", lambda: tl.where(x > a, x, a))
    attempt(f"{name} where column", lambda: tl.where((x > a)[:, None], x[None, :], -1))
    attempt(f"{name} where constant", lambda: tl.where(x < a, 2, 5))
    attempt(f"{name} one", lambda: tl.sum(x, axis=0) + x)
    attempt(f"{name} join", lambda: tl.join(x, x))
    attempt(f"{name} ravel", lambda: tl.ravel(m))
    for axis in (0, 1, -1):
        for operation in REDUCTIONS:
            attempt(f"{name} {operation} {axis}", lambda: function(operation)(m, axis=axis))
        attempt(f"{name} sum, kept, {axis}", lambda: tl.sum(m, axis=axis, keep_dims=True))
        attempt(f"{name} softmax {axis}", lambda: tl.softmax(m.to(tl.float32), axis))
    attempt(f"{name} whole sum", lambda: tl.sum(m))
    attempt(f"{name} whole max", lambda: tl.max(m))
    attempt(f"{name} xor", lambda: tl.xor_sum(x, axis=0))
    attempt(f"{name} sort", lambda: tl.sort(x))
    attempt(f"{name} flip", lambda: tl.flip(x))
    attempt(f"{name} no broadcast", lambda: m + x)
    attempt(f"{name} no arange", lambda: tl.arange(0, 7))
    attempt(f"{name} no dot", lambda: tl.dot(m, m))


@triton.jit
def product(x_ptr, y_ptr, name, rows: tl.constexpr, inner: tl.constexpr, columns: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, rows)[:, None] * inner + tl.arange(0, inner)[None, :])
    y = tl.load(y_ptr + tl.arange(0, inner)[:, None] * columns + tl.arange(0, columns)[None, :])
    attempt(f"{name} dot", lambda: tl.dot(x, y))
    attempt(f"{name} dot into", lambda: tl.dot(x, y, tl.full((rows, columns), 1.5, tl.float32)))
    attempt(f"{name} dot transposed", lambda: tl.dot(tl.trans(y), tl.trans(x)))
    attempt(f"{name} by hand", lambda: tl.sum(x[:, :, None] * y[None, :, :], axis=1))
    attempt(f"{name} scaled", lambda: tl.dot(x, y) * 0.25 - 1)


def structure() -> None:
    for kind in VALUES:
        shapes[(1,)](given(kind), kind, N)
    generator = torch.Generator().manual_seed(1)
    for kind in (torch.float16, torch.float32):
        x = torch.randn(16, 32, generator=generator).to(kind)
        y = torch.randn(32, 16, generator=generator).to(kind)
        product[(1,)](x, y, f"{kind}", 16, 32, 16)


# Memory ----------------------------------------------------------------------------------------------------------


@triton.jit
def pointers(x_ptr, out_ptr, name, stride, one, small: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    far = at.to(tl.int64)
    middle = x_ptr + N
    attempt(f"{name} negative", lambda: tl.load(middle + (at - 8)))
    attempt(f"{name} minus", lambda: tl.load(middle - at))
    attempt(f"{name} minus constant", lambda: tl.load(middle + at - 3))
    attempt(f"{name} far", lambda: tl.load(x_ptr + far * stride))
    attempt(f"{name} far negative", lambda: tl.load(middle + -far))
    attempt(f"{name} added left", lambda: tl.load(at + x_ptr))
    attempt(f"{name} argument", lambda: tl.load(x_ptr + one + at))
    attempt(f"{name} scalar", lambda: tl.load(x_ptr + one))
    attempt(f"{name} scalar of a block", lambda: tl.load(x_ptr + tl.sum(at, axis=0) // 4))
    grid = x_ptr + at[:, None] * stride + tl.arange(0, 2)[None, :]
    attempt(f"{name} grid", lambda: tl.load(grid))
    attempt(f"{name} grid moved", lambda: tl.load(grid + one + small))
    attempt(f"{name} rows", lambda: tl.load(x_ptr + at[:, None] + tl.zeros((1, 2), tl.int32)))
    block = x_ptr + at
    block += 2
    attempt(f"{name} moved", lambda: tl.load(block))
    block += at
    attempt(f"{name} moved by a block", lambda: tl.load(block))
    attempt(f"{name} masked", lambda: tl.load(block, mask=at < 3, other=0))
    attempt(f"{name} masked by a scalar", lambda: tl.load(block, mask=one < 0, other=7))
    attempt(f"{name} masked with a block", lambda: tl.load(block, mask=at % 2 == 0, other=tl.load(x_ptr + at)))
    attempt(
        f"{name} masked grid", lambda: tl.load(grid, mask=(at < 2)[:, None] & (tl.arange(0, 2) < one)[None, :], other=1)
    )
    attempt(f"{name} address", lambda: (x_ptr + at).to(tl.int64) - x_ptr.to(tl.int64))
    attempt(f"{name} compared", lambda: (x_ptr + at) == (x_ptr + one))
    tl.store(out_ptr + at, tl.load(x_ptr + at) + small)
    tl.store(out_ptr + N + at, tl.load(x_ptr + at), mask=at > 4)
    tl.store(out_ptr + 2 * N + one, tl.load(x_ptr))
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


# Control ---------------------------------------------------------------------------------------------------------


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


# In a graph ------------------------------------------------------------------------------------------------------


@triton.jit
def advance(x_ptr, out_ptr, by, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at, x + by)
    tl.store(out_ptr + at, x * 2)


def in_a_graph(ours: bool) -> None:
    """A launch between other calls: with ours recorded and replayed, else just run."""

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty_like(x)
        advance[(2,)](x, out, 3, 4)
        between = out + x
        advance[(2,)](between, out, 1, N=4)
        return out, between

    x = torch.arange(8.0)
    if ours:
        graph = emulated.Graph()
        with emulated.graph(graph):
            results = work()
        assert x.tolist() == list(range(8)), "the capture moved x"
        assert graph.calls == 4, graph.calls  # empty_like, a launch, an addition, a launch
    for turn in range(3):
        x.copy_(torch.arange(8.0) * turn)
        if ours:
            graph.replay()
        else:
            results = work()
        for name, tensor in zip(("out", "between", "x"), (*results, x), strict=True):
            note(f"graph {turn} {name}", tensor)


# sglang's own ----------------------------------------------------------------------------------------------------


def sglang_kernels() -> None:
    attention = importlib.import_module("sglang.srt.layers.attention.triton_ops.decode_attention")
    spec_utils = importlib.import_module("sglang.srt.speculative.spec_utils")
    generator = torch.Generator().manual_seed(5)
    for topk, page in ((1, 1), (2, 1), (3, 4), (8, 1)):
        bs, steps, pool = 3, 3, 64
        table = torch.randint(0, 5000, (bs + 2, pool), generator=generator, dtype=torch.int32)
        lengths = torch.tensor([9, 1, 30])
        indices = torch.full((steps, 1000), -1)
        indptr = torch.full((steps, bs * topk + 1), -1, dtype=torch.int32)
        spec_utils.generate_draft_decode_kv_indices[(steps, bs, topk)](
            torch.tensor([2, 4, 1]),
            table,
            lengths,
            indices,
            indptr,
            lengths.repeat_interleave(topk),
            pool,
            indices.shape[1],
            indptr.shape[1],
            triton.next_power_of_2(bs),
            triton.next_power_of_2(steps),
            triton.next_power_of_2(bs * topk),
            page,
        )
        note(f"kv_indices topk {topk} page {page}", indices)
        note(f"kv_indptr topk {topk} page {page}", indptr)
    for kind in (torch.float32, torch.float16):
        for heads, kv_heads, splits, cap in ((2, 2, 1, 0.0), (2, 2, 3, 30.0), (4, 2, 2, 0.0), (4, 1, 1, 5.0)):
            bs, dim, slots = 3, 16, 40

            def random(*shape: int, kind: torch.dtype = kind) -> torch.Tensor:
                return torch.randn(*shape, generator=generator).to(kind)

            q, k, v = random(bs, heads, dim), random(slots, kv_heads, dim), random(slots, kv_heads, dim)
            lengths = torch.tensor([1, 17, 6])
            indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(torch.int32)
            indices = torch.randperm(slots, generator=generator)[: int(indptr[-1])]
            out = torch.zeros(bs, heads, dim, dtype=kind)
            logits, lse = torch.zeros(bs, heads, splits, dim), torch.zeros(bs, heads, splits)
            used = torch.full((bs,), splits, dtype=torch.int32)
            attention.decode_attention_fwd(
                q, k, v, out, indptr, indices, logits, lse, used, splits, dim**-0.5, 1.0, 1.0, logit_cap=cap
            )
            name = f"attention {kind} heads {heads}/{kv_heads} splits {splits} cap {cap}"
            for part, tensor in (("out", out), ("logits", logits), ("lse", lse)):
                note(f"{name} {part}", tensor)


# Both ways -------------------------------------------------------------------------------------------------------


def run(folder: Path, ours: bool, sglang: bool) -> None:
    if ours:
        interpreter.install()
    if sglang:
        sglang_kernels()
    else:
        for part in (arithmetic, structure, memory, launches):
            part()
        in_a_graph(ours)
    (folder / ("ours.json" if ours else "plain.json")).write_text(json.dumps(RESULTS))


def main(folder: Path, sglang: bool) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if sglang:
        # As in a worker, what the release imports is imported once, before the fork.
        standins.define_torchvision_schemas()
        firsts = tuple(catalogue.NATIVE_IMPORTS)
        standins.stand_in(*catalogue.NATIVE_IMPORTS[catalogue.latest(catalogue.present_release(), firsts, "anything")])
        importlib.import_module("sglang.srt.server_args")
        importlib.import_module("sglang.srt.speculative.spec_utils")
    children = []
    for ours in (False, True):
        child = os.fork()
        if not child:
            try:
                run(folder, ours, sglang)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "sglang" in sys.argv[2:]))
