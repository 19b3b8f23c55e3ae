"""Runs a kernel as it is written once, and notes the operations of numpy that it comes to (recorded.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from runners.engines.triton import lanes, pointers
from runners.engines.triton.batched import BatchedBuilder, Diverged, known
from runners.engines.triton.values import ADDRESSES, MEMORY, NUMBERS, NotRecorded, Value, apply

TensorHandle = triton_interpreter.TensorHandle

# The slots that every recording has: the launch's memory, the numbers of programs, their places, and the size of the
# grid. Behind them lie the launch's arguments.
LANES, PROGRAMS, PLACES, GRID, ARGUMENTS = 0, 1, 2, 5, 8

# What is called, what takes its operands out of their slots, and the slot of what it gives.
Operation = tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]], int]


@dataclass(slots=True, eq=False)
class Segment:
    """Operations up to where memory decides how the kernel goes on, or to its end. Mutable: it grows while it is
    recorded. order: all of them, with what each depends on; by: the same, apart for each of these; varying: those that
    depend on more than numbers, and on more than addresses. decider: the slot whose value decides, and how it
    goes on for each."""

    order: list[tuple[Operation, int]] = field(default_factory=list)
    by: tuple[list[Operation], ...] = field(default_factory=lambda: ([], [], []))
    varying: tuple[list[Operation], list[Operation]] = field(default_factory=lambda: ([], []))
    decider: int | None = None
    ways: dict[Any, Segment] = field(default_factory=dict)


@dataclass(slots=True)
class Recording:
    """All that is known of one kernel with such arguments. Mutable. initial: what lies in the slots before a run,
    constants in theirs. ways: how many there are. unusual: how many launches in a row were."""

    initial: list[Any]
    root: Segment | None = None
    ways: int = 0
    unusual: int = 0


class _Recorder:
    """Runs a kernel once, from the beginning: along what is recorded already, and notes what comes behind it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._new = False
        self._drop: Callable[[], object] = lambda: None
        self._owners: dict[int, int] = {}  # of slots in use, the number of the value in each
        self._free: set[int] = set()
        self._numbers = 0
        self._at = 0
        if recording.root is None:
            recording.root = Segment()
            self._begin_new(lambda: setattr(recording, "root", None))
        self._segment = recording.root

    def _begin_new(self, drop: Callable[[], object]) -> None:
        self._new, self._drop = True, drop
        self.recording.ways += 1

    def value(self, data: Any, slot: int, by: int) -> Value:
        """The value that stands for the data, which is kept in this slot."""
        self._numbers += 1
        self._owners[slot] = self._numbers
        self._free.discard(slot)
        return Value(self, data, slot, self._numbers, by)

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        data = function(*[operand.data if type(operand) is Value else operand for operand in operands])
        if self._new:
            by = max(operand.by for operand in operands if type(operand) is Value)
            places = tuple(operand.slot if type(operand) is Value else self._constant(operand) for operand in operands)
            slot = self._free.pop() if by == MEMORY and self._free else self._constant(None)
            operation = (function, _taking(places), slot)
            self._segment.order.append((operation, by))
            self._segment.by[by].append(operation)
            for varying in self._segment.varying[:by]:
                varying.append(operation)
        else:
            (recorded, _, slot), by = self._segment.order[self._at]
            if _name(recorded) != _name(function):
                raise NotRecorded
        self._at += 1
        return self.value(data, slot, by)

    def forget(self, value: Value) -> None:
        # All else stays in its slot from launch to launch.
        if value.by == MEMORY and self._owners.get(value.slot) == value.number:
            del self._owners[value.slot]
            self._free.add(value.slot)

    def known(self, value: Value) -> Any:
        if self._new:
            self._segment.decider = value.slot
        elif self._segment.decider != value.slot or self._at != len(self._segment.order):
            raise NotRecorded
        answer = known(value.data)
        self._at = 0
        before, way = self._segment, answer.item()
        if way not in before.ways:
            before.ways[way] = Segment()
            self._begin_new(lambda: before.ways.pop(way))
        self._segment = before.ways[way]
        return answer

    def drop(self) -> None:
        """Drop a recording that has not come to its end."""
        self._drop()

    def _constant(self, value: Any) -> int:
        self.recording.initial.append(value)
        return len(self.recording.initial) - 1


def _taking(places: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """A list comprehension would take as long as the operation itself."""
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


def _name(function: Callable[..., Any]) -> Any:
    return function.func if isinstance(function, functools.partial) else function


class _Builder(BatchedBuilder):
    """The same operations, on what stands for arrays. Mutable. inputs: what the recording is of,
    set for each."""

    inputs: list[Value]

    def create_get_program_id(self, axis: int) -> Any:
        return TensorHandle(self.inputs[PLACES + axis], tl.int32)

    def create_get_num_programs(self, axis: int) -> Any:
        return TensorHandle(self.inputs[GRID + axis], tl.int32)

    def create_load(self, ptr: Any, *_: Any) -> Any:
        return self.create_masked_load(ptr, None, None)

    def create_store(self, ptr: Any, value: Any, *_: Any) -> None:
        self.create_masked_store(ptr, value, None)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        element = ptrs.get_element_ty()
        dtype = triton_interpreter._get_np_dtype(element)
        access = self._located(ptrs, mask, dtype.itemsize)
        rest = None if other is None else other.data
        return TensorHandle(apply(lanes.load, self.inputs[LANES], access, rest, dtype), element)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        access = self._located(ptrs, mask, value.data.itemsize)
        apply(lanes.store, self.inputs[LANES], access, value.data)

    def _located(self, ptrs: Any, mask: Any, size: int) -> Any:
        allowed, argument = None if mask is None else mask.data, pointers.argument_of(ptrs)
        return apply(lanes.located, self.inputs[PROGRAMS], ptrs.data, allowed, size, argument)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        if src.dtype.is_ptr() and _width(src.dtype) != _width(dst_type.scalar):
            raise NotRecorded
        return super().create_bitcast(src, dst_type)

    def create_int_to_ptr(self, *_: Any) -> Any:
        raise NotRecorded

    create_ptr_to_int = create_int_to_ptr


def _width(kind: Any) -> int:
    return max(8, kind.element_ty.primitive_bitwidth) if kind.is_ptr() else 0


def _by(data: Any, slot: int) -> int:
    if slot == LANES:
        return MEMORY
    return ADDRESSES if slot >= ARGUMENTS and data.dtype == np.uint64 else NUMBERS


def record(
    recording: Recording,
    function: Callable[..., None],
    arguments: Mapping[str, Any],
    constexprs: frozenset[str],
    inputs: list[Any],
) -> None:
    """Run the kernel as it is written, for one group of programs."""
    builder = triton_interpreter.interpreter_builder
    recorder = _Recorder(recording)
    inputs_of_group = [recorder.value(data, slot, _by(data, slot)) for slot, data in enumerate(inputs)]
    bound = {}
    places = iter(inputs_of_group[ARGUMENTS:])
    for name, value in arguments.items():
        bound[name] = value if name in constexprs else pointers.converted(name, value)
        if name not in constexprs and (type(value) is int or isinstance(value, torch.Tensor)):
            bound[name].handle.data = next(places)
    builder.__class__, builder.inputs = _Builder, inputs_of_group
    try:
        function(**bound)
    except Diverged:
        raise
    except BaseException:
        recorder.drop()
        raise
    finally:
        builder.__class__, builder.inputs = triton_interpreter.InterpreterBuilder, []


def agreed_range(*bounds: Any) -> Any:
    """Python's range, in a kernel. While it is recorded, programs that go round equally often go on together."""
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if not (_varies(start) or _varies(stop)) or type(step) is not int:
        return range(*bounds)
    if _varies(start) and (not _varies(stop) or (start.dtype, stop.dtype) != (tl.int32, tl.int32)):
        return range(*bounds)
    first, last = (bound.handle.data if isinstance(bound, tl.tensor) else bound for bound in (start, stop))
    count = int(known(apply(_rounds, first, last, step)))
    if not _varies(start):
        return range(int(start), int(start) + count * step, step)
    return _counted(start, step, count)


def _varies(bound: Any) -> bool:
    return isinstance(bound, tl.tensor) and type(bound.handle.data) is Value


def _rounds(start: Any, stop: Any, step: int) -> Any:
    """The number of rounds of range(start, stop, step)."""
    length = np.asarray(stop).astype(np.int64) - np.asarray(start).astype(np.int64)
    return np.maximum(-(-length // step), 0)


def _counted(start: Any, step: int, count: int) -> Iterator[Any]:
    for turn in range(count):
        yield tl.tensor(TensorHandle(start.handle.data + np.int32(turn * step), tl.int32), tl.int32)
