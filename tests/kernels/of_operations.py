"""Kernels that calculate, and that change shapes: for interpreted.py. Each operation is noted by its name."""

# ruff: noqa: B023  (every lambda is called before its loop goes on)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.kernels.notes import VALUES, N, attempt, function, given

# By name, because Triton rebinds its functions while a kernel runs.
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"),
    # The shifts last: under Triton's interpreter they change their operands.
    *("and_", "or_", "xor", "minimum", "maximum", "lshift", "rshift"),
)
UNARY = ("neg", "invert", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "floor", "ceil", "sigmoid")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "cumsum", "cumprod")
CONSTANTS = (1, -1, 3, -7, 100, 2**15, -(2**31), 2**31 - 1, 2**31, 2**33 + 1, -(2**40), 0.5, -2.25, 0.1, 1e10, True)


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
