"""Kernels that find addresses by an argument that is None are refused as Triton's compiler refuses them, wherever a
launch goes; no others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.runtime.interpreter import InterpretedFunction

from runners.engines.triton.absent import refuse

# Kernels are read as text alone, and never run.
pytestmark = pytest.mark.emulated
Kernel = Callable[..., None]
ON = tl.constexpr(True)


def plain(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    tl.store(q, tl.load(p + n))


def in_a_branch(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if tl.load(q) < n:
        tl.store(p, n)


def behind_a_branch_that_returns(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if n > 3:
        return
    tl.store(q, tl.load(p + n))


def in_a_loop(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    count = 0
    for i in range(tl.cdiv(n, 4)):
        count += tl.load(p + i)


def in_one_of_two(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    x = tl.load(p + n) if n > 3 else 0
    tl.store(q, x)


def moved(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if n > 3:
        p += n


def if_flag(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if flag and n > 3:
        tl.store(q, tl.load(p + n))


def if_there(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    there: tl.constexpr = p is not None
    if there and ON:
        tl.store(q, tl.load(p + n))
    if p is None:
        return
    tl.store(q, tl.load(p + n))


def if_of_a_type(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if q.dtype.element_ty == tl.float16:
        tl.store(q, tl.load(p + n))


def as_often_as_said(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    for i in tl.static_range(flag):
        tl.store(q, tl.load(p + i))


def _read(p: Any, n: Any, wants: tl.constexpr) -> Any:
    if wants:
        return tl.load(p + n)
    return n


read = InterpretedFunction(_read)


def called(p: Any, q: Any, n: Any, flag: tl.constexpr) -> None:
    if n > 3:
        tl.store(q, read(p, n, wants=flag))


REFUSED = (plain, in_a_branch, behind_a_branch_that_returns, in_a_loop, in_one_of_two, moved)
ACCEPTED = (if_there, if_of_a_type, as_often_as_said)


def launch(kernel: Kernel, *, flag: bool, count: int = 5, **absent: None) -> None:
    refuse(kernel, {"p": 16, "q": 32, "n": count, "flag": flag} | absent, frozenset({"flag"}))


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_an_address_by_nothing_is_refused(kernel: Kernel) -> None:
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(CompilationError, match=f"{kernel.__name__}: p is .* it is None"):
            launch(kernel, flag=True, p=None)
    launch(kernel, flag=True)


@pytest.mark.parametrize("kernel", ACCEPTED, ids=lambda kernel: kernel.__name__)
def test_what_may_not_be_translated_is_not_judged(kernel: Kernel) -> None:
    launch(kernel, flag=False, p=None)
    launch(kernel, flag=True)


@pytest.mark.parametrize("kernel", [if_flag, called], ids=lambda kernel: kernel.__name__)
def test_constants_decide_what_is_translated(kernel: Kernel) -> None:
    launch(kernel, flag=False, p=None)
    with pytest.raises(CompilationError, match="it is None"):
        launch(kernel, flag=True, p=None)


def test_a_size_of_one_is_a_constant() -> None:
    launch(in_one_of_two, flag=True, count=1, p=None)
    with pytest.raises(CompilationError):
        launch(in_one_of_two, flag=True, count=2, p=None)
