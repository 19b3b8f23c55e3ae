"""All programs of a launch at once: every value has a leading axis, of a row a program, or of one row for them all.

Scalars are [rows], blocks [rows, *shape]. Where a branch or a loop bound differs among programs, those that agree go on
together. Where programs read what others write, or an operation has no form for several, every store is taken back and
the launch begins again, one program after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from runners.engines import launch_memory
from runners.engines.triton.values import Value, apply

TensorHandle = triton_interpreter.TensorHandle


class Diverged(BaseException):
    """A scalar that Python must know differs among programs. values: [programs]. No Exception: device functions of
    Triton's interpreter catch those."""

    def __init__(self, values: Any) -> None:
        super().__init__("programs differ")
        self.values = values


class NotBatched(BaseException):
    """This launch has to run one program after the other."""


@dataclass(slots=True)
class _Access:
    """The elements that one operation read or wrote: `size` bytes each in [low, high), where `used`, both [rows,
    elements]. programs: of each row; rows is 1 where all of them did the same."""

    low: int
    high: int
    size: int
    addresses: Any
    used: Any
    programs: Any

    @property
    def by_all(self) -> bool:
        return self.addresses.shape[0] == 1 and len(self.programs) > 1

    def touched(self) -> tuple[Any, Any]:
        """Each address and the program that touched it. Only where not all programs did."""
        programs = filled(self.programs[:, None], self.addresses.shape)
        return self.addresses[self.used], programs[self.used]


@dataclass(slots=True)
class Memory:
    """The reads and writes of a launch so far, and the way to take its stores back."""

    loads: list[_Access] = field(default_factory=list)
    stores: list[_Access] = field(default_factory=list)
    undo: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int]:
        return len(self.loads), len(self.stores), len(self.undo)

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Memory as it was at the mark."""
        loads, stores, undo = mark
        for addresses, before, mask in reversed(self.undo[undo:]):
            triton_interpreter._interpreter.store(addresses, before, mask)
        del self.loads[loads:], self.stores[stores:], self.undo[undo:]


class BatchedBuilder(triton_interpreter.InterpreterBuilder):
    """Triton's builder of operations, on values with a leading axis. Mutable: `programs` and `memory` are set for each
    group of programs."""

    programs: Any  # [programs], their numbers in the launch, in order
    places: Any  # [3, programs], their indices in the grid
    memory: Memory

    def create_get_program_id(self, axis: int) -> Any:
        return TensorHandle(self.places[axis], tl.int32)

    def create_make_range(self, ret_ty: Any, start: int, stop: int) -> Any:
        return TensorHandle(np.arange(start, stop, dtype=np.int32)[None, :], tl.int32)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        return TensorHandle(spread(arg.data, tuple(ret_ty.shape)), arg.dtype.scalar)

    def create_unsplat(self, arg: Any) -> Any:
        return TensorHandle(apply(_reshaped, arg.data, ()), arg.dtype.scalar)

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        return TensorHandle(np.expand_dims(arg.data, axis + 1), arg.dtype.scalar)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        return TensorHandle(stretched(arg.data, tuple(shape)), arg.dtype.scalar)

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        return TensorHandle(apply(_reshaped, arg.data, tuple(shape)), arg.dtype.scalar)

    def create_trans(self, arg: Any, perm: Any) -> Any:
        return TensorHandle(np.transpose(arg.data, (0, *(axis + 1 for axis in perm))), arg.dtype.scalar)

    def create_cat(self, lhs: Any, rhs: Any) -> Any:
        return TensorHandle(apply(_concatenated, lhs.data, rhs.data), lhs.dtype.scalar)

    def create_join(self, lhs: Any, rhs: Any) -> Any:
        return TensorHandle(apply(_joined, lhs.data, rhs.data), lhs.dtype.scalar)

    def create_gather(self, src: Any, indices: Any, axis: int) -> Any:
        return TensorHandle(apply(_gathered, src.data, indices.data, axis), src.dtype.scalar)

    # Memory

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any
    ) -> Any:
        operands = [operand for operand in (ptrs, mask, other) if operand is not None]
        shape = _common_shape(*operands)
        addresses, allowed, *others = (_whole(operand, shape) for operand in operands)
        access = self._access(addresses, allowed, triton_interpreter._get_np_dtype(ptrs.get_element_ty()).itemsize)
        if access:
            for store in self.memory.stores:
                _refuse_exchange(store, access)
            self.memory.loads.append(access)
        return super().create_masked_load(
            addresses, allowed, others[0] if others else None, cache_modifier, eviction_policy, is_volatile
        )

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any) -> None:
        shape = _common_shape(ptrs, value, mask)
        addresses, values, allowed = (_whole(part, shape) for part in (ptrs, value, mask))
        inside = launch_memory.kept(addresses, values.data.itemsize)
        if inside is None:
            raise NotBatched
        access = self._access(addresses, TensorHandle(allowed.data & inside, tl.int1), values.data.itemsize)
        if access:
            for earlier in (*self.memory.loads, *self.memory.stores):
                _refuse_exchange(earlier, access)
            if not access.by_all:
                _refuse_collision(access)
            self.memory.stores.append(access)
            written = allowed.data & inside
            before = triton_interpreter._interpreter.load(
                addresses.data, written, np.zeros_like(values.data), values.data.dtype
            )
            self.memory.undo.append((addresses.data, before, written))
        super().create_masked_store(addresses, values, allowed, cache_modifier, eviction_policy)

    def _access(self, addresses: Any, allowed: Any, size: int) -> _Access | None:
        rows = addresses.data.shape[0]
        flat, used = addresses.data.reshape(rows, -1), allowed.data.reshape(rows, -1)
        touched = flat if used.all() else flat[used]
        if not touched.size:
            return None
        return _Access(int(touched.min()), int(touched.max()) + size, size, flat, used, self.programs)

    # What has no form for several programs

    def create_histogram(self, *_: Any) -> Any:
        raise NotBatched

    create_atomic_cas = create_atomic_rmw = create_histogram
    create_make_block_ptr = create_advance = create_histogram
    create_tensor_pointer_load = create_tensor_pointer_store = create_histogram
    create_make_tensor_descriptor = create_histogram
    create_descriptor_load = create_descriptor_store = create_histogram
    create_descriptor_gather = create_descriptor_scatter = create_histogram
    create_int_to_ptr = create_print = create_histogram


def batched() -> bool:
    """True while values have a leading axis."""
    return isinstance(triton_interpreter.interpreter_builder, BatchedBuilder)


def spread(data: Any, shape: tuple[int, ...]) -> Any:
    """Scalars [rows] as blocks [rows, *shape]."""
    return stretched(lined_up(data, len(shape)), shape)


def stretched(data: Any, shape: tuple[int, ...]) -> Any:
    """Blocks, repeated to this shape."""
    return apply(_stretched, data, shape)


def _stretched(data: Any, shape: tuple[int, ...]) -> Any:
    return filled(data, (data.shape[0], *shape))


def filled(data: Any, shape: tuple[int, ...]) -> Any:
    """The data, repeated to this shape. A copy: blocks are small, and a view of numpy's costs more than one."""
    result = np.empty(shape, data.dtype)
    result[...] = data
    return result


def lined_up(data: Any, rank: int) -> Any:
    """Scalars [rows] so that they broadcast with blocks of this rank."""
    return apply(_reshaped, data, (1,) * rank)


def _reshaped(data: Any, shape: tuple[int, ...]) -> Any:
    return data.reshape(data.shape[0], *shape)


def known(data: Any) -> Any:
    """The one value of a scalar [rows]. Diverged where programs have several."""
    if type(data) is Value:
        return data.recorder.known(data)
    if data.shape[0] > 1 and not (data == data[0]).all():
        raise Diverged(data)
    return data[0]


def truth(data: Any) -> bool:
    """True if a scalar [rows], or a block of one element, is true. Diverged where programs have several."""
    data = apply(_reshaped, data, ())
    # Of what is recorded nothing else counts: it may be an address.
    return bool(known(data != 0 if type(data) is Value else data))


def run(function: Callable[..., None], arguments: dict[str, Any], grid: tuple[int, int, int]) -> bool:
    """Run every program of the grid. False, with memory as it was, where that has to be done one by one.

    arguments: as Triton's interpreter takes them."""
    builder = triton_interpreter.interpreter_builder
    memory = Memory()
    places = every_place(grid)
    builder.__class__ = BatchedBuilder
    builder.memory = memory

    def run_group(programs: Any) -> None:
        builder.programs, builder.places = programs, places[:, programs]
        function(**arguments)

    try:
        in_groups(places.shape[1], memory, run_group)
    except BaseException as error:
        # Of NotBatched, and of whatever the kernel raises, which then comes out in its own program.
        memory.back_to((0, 0, 0))
        if isinstance(error, NotBatched | Exception):
            return False
        raise
    finally:
        builder.__class__ = triton_interpreter.InterpreterBuilder
    return True


@functools.lru_cache(maxsize=256)
def every_place(grid: tuple[int, int, int]) -> Any:
    """[3, programs]: the indices of every program in the grid."""
    return np.indices(grid, dtype=np.int32).reshape(3, grid[0] * grid[1] * grid[2])


def in_groups(count: int, memory: Any, run_group: Callable[[Any], None]) -> None:
    """Run all programs together; where they differ, from the beginning, those that agree."""
    groups = [np.arange(count)]
    while groups:
        programs = groups.pop()
        mark = memory.mark()
        try:
            run_group(programs)
        except Diverged as divergence:
            memory.back_to(mark)
            groups += _agreeing(programs, divergence.values)


def _agreeing(programs: Any, values: Any) -> list[Any]:
    """Programs that have the same value, together; the first to run comes last."""
    distinct, which = np.unique(values, return_inverse=True)
    groups = [programs[which.reshape(-1) == number] for number in range(len(distinct))]
    return sorted(groups, key=lambda group: -int(group[0]))


def _concatenated(left: Any, right: Any) -> Any:
    return np.concatenate(_alike(left, right), axis=1)


def _joined(left: Any, right: Any) -> Any:
    return np.stack(_alike(left, right), axis=-1)


def _gathered(source: Any, places: Any, axis: int) -> Any:
    return np.take_along_axis(*_alike(source, places), axis=axis + 1)


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    rows = max(left.shape[0], right.shape[0])
    return filled(left, (rows, *left.shape[1:])), filled(right, (rows, *right.shape[1:]))


def _whole(handle: Any, shape: tuple[int, ...]) -> Any:
    return handle if handle.data.shape == shape else TensorHandle(filled(handle.data, shape), handle.dtype)


def _common_shape(*handles: Any) -> tuple[int, ...]:
    first: tuple[int, ...] = handles[0].data.shape
    if all(handle.data.shape == first for handle in handles):
        return first
    return np.broadcast_shapes(*(handle.data.shape for handle in handles))


def _refuse_exchange(earlier: _Access, later: _Access) -> None:
    """NotBatched if a program touched what another did, one of them writing: the order of programs would matter."""
    if earlier.high <= later.low or later.high <= earlier.low:
        return
    if earlier.size != later.size:
        raise NotBatched
    shared = np.intersect1d(earlier.addresses[earlier.used], later.addresses[later.used])
    if not shared.size:
        return
    if earlier.by_all or later.by_all:
        raise NotBatched
    addresses, programs = (np.concatenate(parts) for parts in zip(earlier.touched(), later.touched(), strict=True))
    among = np.isin(addresses, shared)
    if len(np.unique(np.stack([addresses[among].astype(np.int64), programs[among]], axis=1), axis=0)) > len(shared):
        raise NotBatched


def _refuse_collision(store: _Access) -> None:
    """NotBatched if two programs write to one address."""
    addresses, programs = store.touched()
    order = np.argsort(addresses, kind="stable")
    addresses, programs = addresses[order], programs[order]
    if ((addresses[1:] == addresses[:-1]) & (programs[1:] != programs[:-1])).any():
        raise NotBatched
