"""Kernels recorded once and run again as flat lists of numpy's operations, without Triton's language in between.

A recording belongs to a kernel, its constants and the kinds of its arguments; addresses, numbers, grid and programs are
what it is given. Where memory decided how Python went on, it has a way for each answer that was met; another answer is
recorded when it comes. All programs of a launch run at once, as in batched.py, and what a recording cannot stand for
is left to that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from runners.engines import launch_memory
from runners.engines.triton import lanes
from runners.engines.triton.batched import NotBatched, every_place, in_groups, known
from runners.engines.triton.recording import ARGUMENTS, GRID, PLACES, Recording, record
from runners.engines.triton.values import NotRecorded

# So many kernels are kept, one for each kind of arguments, and so many ways through one; and so often in a row a launch
# may be unusual, before it is no longer tried.
_KERNELS, _WAYS, _PATIENCE = 1000, 200, 5


class _Unmet(BaseException):
    """No way is recorded for what memory says."""


_recordings: dict[tuple[Any, ...], Recording] = {}


def run(
    function: Callable[..., None],
    arguments: Mapping[str, Any],
    constexprs: frozenset[str],
    grid: tuple[int, int, int],
    spans: Sequence[launch_memory.Span],
) -> bool:
    """Run every program of the grid. False, with memory as it was, where that has to be done in another way."""
    kinds, given = _described(arguments, constexprs)
    # Who traces what Python runs is to see every line.
    if kinds is None or sys.gettrace() is not None:
        return False
    recording = _recordings.get(key := (function, *kinds))
    if recording is None:
        if len(_recordings) >= _KERNELS:
            _recordings.clear()
        recording = _recordings[key] = Recording([None] * (ARGUMENTS + len(given)))
    if _given_up(recording):
        return False
    places, memory = every_place(grid), lanes.Lanes(spans)
    inputs = [memory, *places, *(np.array([size], dtype=np.int32) for size in grid), *given]

    def run_group(programs: Any) -> None:
        memory.programs = programs
        inputs[PLACES:GRID] = places[:, programs]
        mark = memory.mark()
        try:
            _replay(recording, inputs)
        except _Unmet:
            memory.back_to(mark)
            record(recording, function, arguments, constexprs, inputs)

    try:
        in_groups(places.shape[1], memory, run_group)
        memory.settle(places.shape[1])
    except BaseException as error:
        memory.back_to((0, 0, 0, 0))
        if isinstance(error, NotRecorded | NotBatched):
            recording.ways = _WAYS + 1
        elif isinstance(error, lanes.Unusual | Exception):
            recording.unusual += 1
        else:
            raise
        return False
    recording.unusual = 0
    return True


def _given_up(recording: Recording) -> bool:
    return recording.ways > _WAYS or recording.unusual > _PATIENCE


def kernels() -> frozenset[str]:
    """Those that are recorded, by name, with whatever arguments they had."""
    given_up = {key[0] for key, recording in _recordings.items() if _given_up(recording)}
    return frozenset(function.__name__ for function, *_ in _recordings if function not in given_up)


def _described(arguments: Mapping[str, Any], constexprs: frozenset[str]) -> tuple[list[object] | None, list[Any]]:
    """What a recording depends on, None if it cannot be told, and what it is given for the rest."""
    kinds: list[object] = []
    given = []
    for name, value in arguments.items():
        if name in constexprs:
            if type(value) not in _PLAIN:
                return None, []
            kinds.append((type(value), repr(value)))
        elif type(value) is int:
            dtype = next((dtype for dtype, low, high in _INTEGERS if low <= value < high), None)
            if dtype is None:
                return None, []
            kinds.append(dtype)
            given.append(np.array([value], dtype=dtype))
        elif isinstance(value, torch.Tensor):
            kinds.append(value.dtype)
            given.append(np.array([value.data_ptr()], dtype=np.uint64))
        elif type(value) in _PLAIN:
            kinds.append((type(value), repr(value)))
        else:
            return None, []
    return kinds, given


_PLAIN = {bool, int, float, str, type(None), tl.dtype}
# As Triton's interpreter takes integers.
_INTEGERS = (
    (np.int32, -(2**31), 2**31),
    (np.uint32, 2**31, 2**32),
    (np.int64, -(2**63), 2**63),
    (np.uint64, 2**63, 2**64),
)


def _replay(recording: Recording, inputs: list[Any]) -> None:
    segment = recording.root
    slots = recording.initial.copy()
    slots[: len(inputs)] = inputs
    while segment is not None:
        for function, operands, slot in segment.operations:
            slots[slot] = function(*[slots[operand] for operand in operands])
        if segment.asked is None:
            return
        segment = segment.ways.get(known(slots[segment.asked]).item())
    raise _Unmet
