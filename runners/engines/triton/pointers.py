"""Which argument of its launch a pointer was made from: the memory of the others is foreign to it.

Triton's interpreter keeps pointers as numbers, and where one of them leads depends on where the host's allocator put
things. What makes one pointer of another hands its type on, so the type has the argument's name; where pointers of two
arguments meet, it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as triton_interpreter


class PointerOf(tl.pointer_type):
    """The type of a pointer that was made from this argument. Equal to that of any other pointer to such elements."""

    def __init__(self, kind: Any, argument: str) -> None:
        super().__init__(kind.element_ty, kind.address_space, kind.const)
        self.argument = argument


def argument_of(typed: Any) -> str | None:
    """Of a tensor, or a handle: the argument that it was made from; None if it is no pointer, or nobody knows."""
    return getattr(typed.dtype.scalar, "argument", None)


def converted(name: str, value: Any) -> Any:
    """What a kernel is given for this argument."""
    given = triton_interpreter._implicit_cvt(value)
    return _typed(given, PointerOf(given.dtype, name)) if _is_pointer(given) else given


def _is_pointer(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.dtype.is_ptr()


def _typed(pointer: Any, kind: Any) -> Any:
    """The same pointer, or block of pointers, of another type."""
    whole = tl.block_type(kind, pointer.type.sizes) if pointer.type.is_block() else kind
    return tl.tensor(triton_interpreter.TensorHandle(pointer.handle.data, kind), whole)


def _chosen(where: Callable[..., Any]) -> Callable[..., Any]:
    """Of pointers of two arguments, each lane's may be either."""

    def choose(self: Any, condition: Any, x: Any, y: Any) -> Any:
        if _is_pointer(x) and _is_pointer(y) and argument_of(x) != argument_of(y):
            x, y = (_typed(each, tl.pointer_type(each.dtype.element_ty, each.dtype.address_space)) for each in (x, y))
        return where(self, condition, x, y)

    return choose


def _recast(bitcast: Callable[..., Any]) -> Callable[..., Any]:
    """Pointers to other elements, as booleans are loaded by, in the same memory."""

    def create_bitcast(self: Any, handle: Any, kind: Any) -> Any:
        result, argument = bitcast(self, handle, kind), argument_of(handle)
        if argument is not None and result.dtype.is_ptr():
            result.dtype = PointerOf(result.dtype, argument)
        return result

    return create_bitcast


def install() -> None:
    semantic, builder = triton_interpreter.TritonSemantic, triton_interpreter.InterpreterBuilder
    semantic.where = _chosen(semantic.where)
    builder.create_bitcast = _recast(builder.create_bitcast)
