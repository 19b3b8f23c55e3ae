"""The argument of its launch that a pointer was made from: the memory of the others is foreign to it.

Triton's interpreter keeps pointers as numbers, and where one of them leads depends on where the host's allocator put
things. What makes one pointer of another hands its type on, so the type has the argument's name; where pointers of two
arguments meet, it has none. A pointer that is made from a number, out of a table of addresses say, leads to memory that
the launch was given in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

# In place of an argument's name: the pointer was made from a number.
ANYWHERE = ""


class PointerOf(tl.pointer_type):
    """The type of a pointer that was made from this argument. Equal to that of any other pointer to such elements."""

    def __init__(self, kind: Any, argument: str) -> None:
        super().__init__(kind.element_ty, kind.address_space, kind.const)
        self.argument = argument


def argument_of(typed: Any) -> str | None:
    """The argument that a tensor, or a handle, was made from; None if it is no pointer, or unknown."""
    return getattr(typed.dtype.scalar, "argument", None)


def converted(name: str, value: Any) -> Any:
    """The value that a kernel is given for this argument."""
    handle = triton_interpreter._implicit_cvt(value)
    return _typed(handle, PointerOf(handle.dtype, name)) if _is_pointer(handle) else handle


def _is_pointer(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.dtype.is_ptr()


def _typed(pointer: Any, kind: Any) -> Any:
    """The same pointer, or block of pointers, of another type."""
    whole = tl.block_type(kind, pointer.type.sizes) if pointer.type.is_block() else kind
    return tl.tensor(triton_interpreter.TensorHandle(pointer.handle.data, kind), whole)


def _chosen(where: Callable[..., Any]) -> Callable[..., Any]:
    """Choose between pointers of two arguments: each lane's may be either."""

    def choose(self: Any, condition: Any, x: Any, y: Any) -> Any:
        if _is_pointer(x) and _is_pointer(y) and argument_of(x) != argument_of(y):
            kind = tl.pointer_type(x.dtype.element_ty, x.dtype.address_space)
            kind = PointerOf(kind, ANYWHERE) if ANYWHERE in (argument_of(x), argument_of(y)) else kind
            x, y = (_typed(each, kind) for each in (x, y))
        return where(self, condition, x, y)

    return choose


def _recast(cast: Callable[..., Any]) -> Callable[..., Any]:
    """Pointers to other elements, as booleans are loaded by, lead to the same memory, those of numbers anywhere."""

    def recast(self: Any, value: Any, *rest: Any) -> Any:
        result = cast(self, value, *rest)
        if result is value or not _is_pointer(result):
            return result
        argument = argument_of(value) if _is_pointer(value) else ANYWHERE
        return result if argument is None else _typed(result, PointerOf(result.dtype, argument))

    return recast


def install() -> None:
    semantic = triton_interpreter.TritonSemantic
    semantic.where = _chosen(semantic.where)
    semantic.cast = _recast(semantic.cast)
