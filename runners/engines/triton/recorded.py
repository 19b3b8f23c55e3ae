"""Kernels recorded once and run again as flat lists of numpy's operations, without Triton's language in between.

A recording belongs to a kernel, its constants and the kinds of its arguments; addresses, numbers, grid and programs are
what it is given. Where memory decided how Python went on, it has a way for each answer that was met; another answer is
recorded when it comes. All programs of a launch run at once, as in batched.py, and what a recording cannot stand for
is left to that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.language as tl

from runners.engines import launch_memory
from runners.engines.triton import lanes
from runners.engines.triton.batched import NotBatched, every_place, in_groups, known
from runners.engines.triton.recording import ARGUMENTS, Recording, Segment, record
from runners.engines.triton.values import NotRecorded

# So many kernels are kept, one for each kind of arguments, and so many ways through one; and so often in a row a launch
# may be unusual, before it is no longer tried.
_KERNELS, _WAYS, _PATIENCE = 1000, 200, 5
# For so many launches of a kernel, which differ in what they are given, is kept what follows from that alone, as
# long as it is not more than so many bytes.
_KEPT, _BYTES = 64, 1 << 23


class _Unmet(BaseException):
    """No way is recorded for what memory says."""


@dataclass(slots=True)
class _Kept:
    """The results that all launches of a recording share if their arguments agree. Mutable: it grows with the ways that
    are taken. by: which operations' results it has: those that depend on numbers, or also those that do on addresses;
    segments: where it has them of; size: of what it has, in bytes."""

    by: int
    slots: list[Any]
    size: int = 0
    segments: set[Segment] = field(default_factory=set)


@dataclass(slots=True)
class _Kernel:
    """A recording, and what is kept of it by what launches are given. Mutable."""

    recording: Recording
    kept: dict[tuple[object, ...], _Kept] = field(default_factory=dict)

    @property
    def given_up(self) -> bool:
        return self.recording.ways > _WAYS or self.recording.unusual > _PATIENCE


@dataclass(frozen=True, slots=True)
class Described:
    """A launch as recordings are kept by it, None if it cannot be told; and the addresses and numbers it is given. by:
    which of them launches to come will be given again."""

    kind: tuple[object, ...] | None
    inputs: tuple[tuple[Any, int], ...]
    by: int


_kernels: dict[tuple[Any, ...], _Kernel] = {}


def run(
    described: Described,
    function: Callable[..., None],
    arguments: Mapping[str, Any],
    constexprs: frozenset[str],
    grid: tuple[int, int, int],
    spans: Sequence[launch_memory.Span],
) -> bool:
    """Run every program of the grid. False, with memory as it was, where that has to be done in another way."""
    if described.kind is None or sys.gettrace() is not None:  # a tracer is to see every line
        return False
    kernel = _kernel(described)
    if kernel.given_up:
        return False
    recording = kernel.recording
    places, memory = every_place(grid), lanes.Lanes(spans)
    numbers = [np.array([value], dtype=dtype) for dtype, value in described.inputs]
    sizes = [np.array([size], dtype=np.int32) for size in grid]

    def inputs(programs: Any) -> list[Any]:
        return [memory, programs, *places[:, programs], *sizes, *numbers]

    def run_group(programs: Any) -> None:
        mark = memory.mark()
        try:
            _replay(recording, _kept(kernel, described, grid, programs), inputs(programs))
        except _Unmet:
            memory.back_to(mark)
            record(recording, function, arguments, constexprs, inputs(programs))

    try:
        in_groups(places.shape[1], memory, run_group)
        memory.settle()
    except BaseException as error:
        memory.back_to((0, 0, 0, 0))
        if not _is_counted(error, recording):
            raise
        return False
    recording.unusual = 0
    return True


def _is_counted(error: BaseException, recording: Recording) -> bool:
    """True if another way can run this launch; the recording counts what it could not."""
    if isinstance(error, NotRecorded | NotBatched):
        recording.ways = _WAYS + 1
    elif isinstance(error, lanes.Unusual | Exception):
        recording.unusual += 1
    else:
        return False
    return True


def _kernel(described: Described) -> _Kernel:
    assert described.kind is not None
    kernel = _kernels.get(described.kind)
    if kernel is None:
        if len(_kernels) >= _KERNELS:
            _kernels.clear()
        kernel = _kernels[described.kind] = _Kernel(Recording([None] * (ARGUMENTS + len(described.inputs))))
    return kernel


def _kept(kernel: _Kernel, described: Described, grid: tuple[int, int, int], programs: Any) -> _Kept:
    numbers = [value for dtype, value in described.inputs if described.by or dtype is not np.uint64]
    key = (described.by, grid, programs.tobytes(), *numbers)
    kept = kernel.kept.get(key)
    if kept is None:
        while len(kernel.kept) >= _KEPT or sum(each.size for each in kernel.kept.values()) > _BYTES:
            del kernel.kept[next(iter(kernel.kept))]
        kept = kernel.kept[key] = _Kept(described.by, [])
    kept.slots += kernel.recording.initial[len(kept.slots) :]
    return kept


def kernels() -> frozenset[str]:
    """The kernels that are recorded, by name, with whatever arguments they had."""
    given_up = {function for (function, *_), kernel in _kernels.items() if kernel.given_up}
    return frozenset(function.__name__ for function, *_ in _kernels if function not in given_up)


def described(
    function: Callable[..., None], arguments: Mapping[str, Any], constexprs: frozenset[str], by: int
) -> Described:
    """The keys of recordings of this launch, and of results: those depend on numbers, or on addresses, too."""
    kinds: list[object] = [function]
    numbers: list[tuple[Any, int]] = []
    for name, value in arguments.items():
        kind = type(value)
        if kind is int and name not in constexprs:
            dtype = next((dtype for dtype, low, high in _INTEGERS if low <= value < high), None)
            kinds.append(dtype)
            numbers.append((dtype, value))
        elif kind in _PLAIN:
            kinds.append((kind, repr(value)))
        elif isinstance(value, torch.Tensor) and name not in constexprs:
            kinds.append(value.dtype)
            numbers.append((np.uint64, value.data_ptr()))
        else:
            return Described(None, (), by)
    return Described(None if None in kinds else tuple(kinds), tuple(numbers), by)


_PLAIN = {bool, int, float, str, type(None), tl.dtype}
# As Triton's interpreter takes integers.
_INTEGERS = (
    (np.int32, -(2**31), 2**31),
    (np.uint32, 2**31, 2**32),
    (np.int64, -(2**63), 2**63),
    (np.uint64, 2**63, 2**64),
)


def _replay(recording: Recording, kept: _Kept, inputs: list[Any]) -> None:
    slots = kept.slots.copy()
    slots[: len(inputs)] = inputs
    segment = recording.root
    while segment is not None:
        if segment not in kept.segments:
            for operations in segment.by[: kept.by + 1]:
                for function, operands, slot in operations:
                    slots[slot] = kept.slots[slot] = value = function(*operands(slots))
                    kept.size += value.nbytes
            kept.segments.add(segment)
        for function, operands, slot in segment.varying[kept.by]:
            slots[slot] = function(*operands(slots))
        if segment.decider is None:
            return
        segment = segment.ways.get(known(slots[segment.decider]).item())
    raise _Unmet
