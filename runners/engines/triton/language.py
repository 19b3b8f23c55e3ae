"""Cheaper objects for Triton's interpreter: the same values with less bookkeeping per operation.

Under the interpreter nearly all time goes into describing tensors: types are built anew for every result, their
shapes wrapped element by element and their names formatted. Types are values, so here equal ones are shared, and
checks of the interpreter's own internals are left out. tests/runners/engines/test_interpreter.py holds both against
each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter as triton_interpreter

from runners.engines.triton import batched, eight_bits
from runners.engines.triton.values import apply

_Tuple = core.tuple
_constexpr = core.constexpr


@functools.cache
def _plain_shape(shape: tuple[int, ...]) -> Any:
    """A block type's shape: Triton's tuple of integers."""
    return _Tuple(shape)


@functools.cache
def _wrapped_shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor's shape, a Triton tuple of constexpr, and its number of elements."""
    return _Tuple([_constexpr(size) for size in shape]), _constexpr(math.prod(shape))


@functools.cache
def _block_facts(element: str, shape: tuple[int, ...]) -> tuple[Any, int, str]:
    if not shape:
        raise TypeError("0d block_type is forbidden")
    return _plain_shape(shape), core.validate_block_shape(shape), f"<{_plain_shape(shape)}, {element}>"


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple([size.value if type(size) is _constexpr else size for size in shape])


def _block_init(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = _sizes(shape)
    self.element_ty = element_ty
    self.sizes = sizes
    self.shape, self.numel, self.name = _block_facts(str(element_ty), sizes)
    self.wrapped = _wrapped_shape(sizes)


def _tensor_init(self: Any, handle: Any, type: Any) -> None:
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    self.shape, self.numel = type.wrapped


_SCALAR = _wrapped_shape(())
_np_types: dict[str, np.dtype] = {}
_slow_np_dtype = triton_interpreter._get_np_dtype


def _np_dtype(triton_type: Any) -> Any:
    element = triton_type.element_ty if isinstance(triton_type, tl.block_type) else triton_type
    if isinstance(element, tl.pointer_type):
        return _UINT64
    dtype = _np_types.get(element.name)
    if dtype is None:
        dtype = _np_types[element.name] = _slow_np_dtype(element)
    return dtype


_UINT64 = np.dtype(np.uint64)


def _fits(array: Any, triton_type: Any) -> bool:
    """True if a result still has the width of its type: operators of numpy may widen it."""
    if isinstance(triton_type, tl.pointer_type):
        return True
    return bool(array.itemsize * 8 <= max(8, triton_type.primitive_bitwidth))


def _handle_init(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
    """Without checking the width of the data against the type."""
    self.data = data
    self.dtype = dtype
    self.attr = {} if attr is None else attr


def _bind(target: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Give a builtin of the language its semantic, without filtering keyword arguments at each call."""
    semantic = triton_interpreter.TritonSemantic(builder)
    function = getattr(member, "__wrapped__", member)

    def bound(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    scope.set_attr(target, name, bound)


_blocks: dict[tuple[str, str | None, tuple[int, ...]], Any] = {}


def _block(element: Any, sizes: tuple[int, ...]) -> Any:
    """The one block type of this element and shape."""
    key = (element.name, getattr(element, "argument", None), sizes)
    block = _blocks.get(key)
    if block is None:
        block = _blocks[key] = tl.block_type(element, sizes)
    return block


def _spread(value: Any, sizes: tuple[int, ...]) -> Any:
    """A scalar as a block."""
    if batched.batched():
        handle = triton_interpreter.TensorHandle(batched.spread(value.handle.data, sizes), value.dtype)
        return tl.tensor(handle, _block(value.dtype, sizes))
    data = np.empty(sizes, value.handle.data.dtype)
    data.fill(value.handle.data.item())
    return tl.tensor(triton_interpreter.TensorHandle(data, value.dtype), _block(value.dtype, sizes))


def _stretched(value: Any, sizes: tuple[int, ...]) -> Any:
    """A block whose dimensions of one are repeated."""
    if value.type.sizes == sizes:
        return value
    data = value.handle.data
    wide = batched.stretched(data, sizes) if batched.batched() else np.broadcast_to(data, sizes)
    handle = triton_interpreter.TensorHandle(wide, value.dtype)
    return tl.tensor(handle, _block(value.dtype, sizes))


def _operands(left: Any, right: Any) -> tuple[Any, Any]:
    """The data of two tensors, one of which may be a scalar, as numpy broadcasts them."""
    first, second = left.handle.data, right.handle.data
    if batched.batched() and first.ndim != second.ndim:
        rank = max(first.ndim, second.ndim) - 1
        return (batched.lined_up(first, rank), second) if first.ndim == 1 else (first, batched.lined_up(second, rank))
    return first, second


def _shapes_first(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Broadcasting, straight to the result for operands of one rank; the rest, and every error, is Triton's."""

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type.sizes, rhs.type.sizes
        if left == right:
            return lhs, rhs
        if not left:
            return _spread(lhs, right), rhs
        if not right:
            return lhs, _spread(rhs, left)
        if len(left) == len(right) and all(a == b or a == 1 or b == 1 for a, b in zip(left, right, strict=True)):
            common = tuple([max(a, b) for a, b in zip(left, right, strict=True)])
            return _stretched(lhs, common), _stretched(rhs, common)
        return slow(self, lhs, rhs)

    return broadcast


def _unwrapped(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Most of what is unwrapped was never wrapped."""

    def unwrap(value: Any) -> Any:
        kind = type(value)
        if kind is _constexpr:
            return value.value
        return value if kind in _BARE else slow(value)

    return unwrap


_BARE = {tl.tensor, int, bool, float, str, type(None), tl.dtype, tl.block_type, tl.pointer_type}


def _promotion_kept(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Promotion depends on the two types alone, so it is worked out once; and small constants beside a
    signed or floating tensor take its type."""
    cache: dict[tuple[Any, ...], Any] = {}

    def check(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        if type(lhs) is tl.tensor:
            left = lhs.dtype
            if type(rhs) is tl.tensor:
                right = rhs.dtype
                key = (left.name, right.name, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
                if key not in cache:
                    self.check_ptr_type_impl(left, right, allow_lhs_ptr)
                    self.check_ptr_type_impl(right, left, allow_rhs_ptr)
                    promotes = arithmetic_check and not left.is_ptr() and not right.is_ptr()
                    cache[key] = self.computation_type_impl(left, False, right, False, div_or_mod) if promotes else None
                common = cache[key]
                if common is not None:
                    lhs, rhs = self.cast(lhs, common), self.cast(rhs, common)
                return self.broadcast_impl_value(lhs, rhs)
            if arithmetic_check and not div_or_mod and _takes_type_of(rhs, left.name):
                return self.broadcast_impl_value(lhs, self.scalar_constant(rhs, left))
        return slow(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    return check


def _takes_type_of(constant: Any, kind: str) -> bool:
    if kind in ("int32", "int64"):
        return type(constant) is int and -_SMALL < constant < _SMALL
    return kind in ("fp32", "fp64") and type(constant) in (int, float)


_SMALL = 2**31


def _unchanged_type_first(slow: Callable[..., Any]) -> Callable[..., Any]:
    """A cast to the type that a tensor has gives the tensor."""

    def cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        if isinstance(dst_ty, core.constexpr):
            dst_ty = dst_ty.value
        if fp_downcast_rounding is None and input.dtype is dst_ty.scalar:
            return input
        return slow(self, input, dst_ty, fp_downcast_rounding)

    return cast


def _straight(operation: Callable[[Any, Any], Any], slow: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that goes straight to numpy where no promotion, cast or broadcast of blocks is needed: two
    tensors of one arithmetic type and shape, or a block and a scalar, or a tensor and a constant of its kind.
    Numpy broadcasts a scalar, held as an array of one element, without copies."""

    def operator(self: Any, other: Any) -> Any:
        element = self.dtype
        kind = element.name
        if kind in _NUMPY_KINDS:
            if type(other) is tl.tensor:
                if other.dtype.name == kind:
                    left, right = self.type.sizes, other.type.sizes
                    if left == right or not right or not left:
                        return _made(operation(*_operands(self, other)), element, self.type if left else other.type)
            elif type(other) in _NUMPY_KINDS[kind] and -_SMALL < other < _SMALL:
                return _made(operation(self.handle.data, other), element, self.type)
        return slow(self, other)

    return operator


# Constants that take the type of a tensor of this kind. bfloat16 is missing: it is stored as integers.
_NUMPY_KINDS: dict[str, tuple[type, ...]] = {
    "int32": (int,),
    "int64": (int,),
    "fp16": (),
    "fp32": (int, float),
    "fp64": (int, float),
}


def _made(data: Any, element: Any, of_type: Any) -> Any:
    tensor = tl.tensor.__new__(tl.tensor)
    tensor.handle = triton_interpreter.TensorHandle(data, element)
    tensor.type = of_type
    tensor.dtype = element
    tensor.shape, tensor.numel = of_type.wrapped
    return tensor


def _compared(operation: Callable[[Any, Any], Any], slow: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a comparison, whose result is of booleans. Not of fp64: Triton rounds its constants to fp32."""

    def operator(self: Any, other: Any) -> Any:
        kind = self.dtype.name
        if kind in _NUMPY_KINDS and kind != "fp64":
            left = self.type.sizes
            if type(other) is tl.tensor:
                right = other.type.sizes
                if other.dtype.name == kind and (left == right or not left or not right):
                    return _booleans(operation(*_operands(self, other)), left or right)
            elif type(other) in _NUMPY_KINDS[kind] and -_SMALL < other < _SMALL:
                return _booleans(operation(self.handle.data, other), left)
        return slow(self, other)

    return operator


def _booleans(data: Any, sizes: tuple[int, ...]) -> Any:
    return _made(data, tl.int1, _block(tl.int1, sizes) if sizes else tl.int1)


def _tensors_first(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Most of what is made a tensor is one."""

    def to_tensor(self: Any, x: Any, check_type: bool = True) -> Any:
        return x if type(x) is tl.tensor else slow(self, x, check_type)

    return to_tensor


def _pointed(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Pointer plus offset, both blocks of one shape or one of them a scalar."""

    def add(self: Any, other: Any) -> Any:
        pointer = self.dtype
        if pointer.is_ptr() and type(other) is tl.tensor and other.dtype.name in ("int32", "int64"):
            left, right = self.type.sizes, other.type.sizes
            width = max(1, pointer.element_ty.primitive_bitwidth // 8)
            if left == right or not right or not left:
                start, offset = _operands(self, other)
                kind = self.type if left or not right else _block(pointer, right)
                return _made(start + width * offset.astype(np.uint64), pointer, kind)
        return slow(self, other)

    return add


def _whole_launch(patch: Callable[..., None]) -> Callable[..., None]:
    """Python's view of a tensor: as Triton says, and of several programs' scalars the value that they agree on."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        index, truth, transposed = tensor.__index__, tensor.__bool__, tensor.T

        def scalar(self: Any) -> bool:
            return batched.batched() and not self.type.sizes

        def turned(self: Any) -> Any:
            if not batched.batched():
                return transposed.fget(self)
            *outer, rows, columns = self.type.sizes
            handle = triton_interpreter.TensorHandle(np.swapaxes(self.handle.data, -1, -2), self.handle.dtype)
            return tl.tensor(handle, _block(self.dtype, (*outer, columns, rows)))

        scope.set_attr(
            tensor, "__index__", lambda self: int(batched.known(self.handle.data)) if scalar(self) else index(self)
        )
        scope.set_attr(
            tensor,
            "__bool__",
            # As in Triton, a block of several elements is true.
            lambda self: batched.truth(self.handle.data) if scalar(self) else _block_truth(self, truth),
        )
        scope.set_attr(tensor, "T", property(turned))

    return patched


def _block_truth(block: Any, sequential: Callable[[Any], bool]) -> bool:
    if not batched.batched():
        return sequential(block)
    return batched.truth(block.handle.data) if math.prod(block.type.sizes) == 1 else True


def shorten_operators() -> None:
    """Put the straight operators over those that Triton's patch has just bound to the interpreter."""
    tensor = tl.tensor
    tensor.__add__ = _pointed(_straight(np.add, tensor.__add__))
    tensor.__sub__ = _straight(np.subtract, tensor.__sub__)
    tensor.__mul__ = _straight(np.multiply, tensor.__mul__)
    tensor.__lt__ = _compared(np.less, tensor.__lt__)
    tensor.__le__ = _compared(np.less_equal, tensor.__le__)
    tensor.__gt__ = _compared(np.greater, tensor.__gt__)
    tensor.__ge__ = _compared(np.greater_equal, tensor.__ge__)


def install() -> None:
    """Put the cheaper objects in place, for good: in this process every kernel is interpreted."""
    tl.dtype.sizes, tl.dtype.wrapped = (), _SCALAR
    tl.block_type.__init__ = _block_init
    tl.tensor.__init__ = _tensor_init
    triton_interpreter._get_np_dtype = _np_dtype
    convert = eight_bits.converting(triton_interpreter._convert_float)
    triton_interpreter._convert_float = functools.partial(apply, convert)
    triton_interpreter._validate_np_data_size = _fits
    triton_interpreter.TensorHandle.__init__ = _handle_init
    triton_interpreter._patch_attr = _bind
    triton_interpreter._patch_lang_tensor = _whole_launch(triton_interpreter._patch_lang_tensor)
    semantic = triton_interpreter.TritonSemantic
    semantic.broadcast_impl_value = _shapes_first(semantic.broadcast_impl_value)
    core._unwrap_if_constexpr = _unwrapped(core._unwrap_if_constexpr)
    semantic.binary_op_type_checking_impl = _promotion_kept(semantic.binary_op_type_checking_impl)
    semantic.to_tensor = _tensors_first(semantic.to_tensor)
    semantic.cast = _unchanged_type_first(semantic.cast)
