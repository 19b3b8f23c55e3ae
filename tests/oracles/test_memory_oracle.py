"""memory: what kernels touch, judged from what the emulated engine saw."""

from __future__ import annotations

import numpy as np

from fuzz.mutation.directed import plan
from oracles import memory
from oracles.catalogue import asked
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace

CASE = plan("draft", "triton")[0]


def trace(*seen: tuple[int, str, list[int] | int]) -> Trace:
    arrays = tuple(
        RecordedArray(
            step=step, path="memory", name=name, array=np.array(value, np.uint8 if name.startswith("starts") else None)
        )
        for step, name, value in seen
    )
    return Trace(ended=End(how=Termination.DONE), seen=arrays)


def test_what_kernels_did_outside_fails_by_kernel_and_argument() -> None:
    late, other = ("load outside kv_indices in stage1", [40, 32]), ("store outside out in last", [4, 4])
    first, second = memory.judge(CASE, trace((0, "launches", 3), (1, *late), (1, *other), (2, *late)))
    assert [(v.status, v.where) for v in (first, second)] == [(Status.FAIL, late[0]), (Status.FAIL, other[0])]
    assert "step 1" in first.detail and "element 40 of 32" in first.detail
    # Not where in a case it shows.
    [early] = memory.judge(CASE, trace((-1, late[0], [7, 8]), (0, "launches", 3)))
    assert early.where == late[0]


def test_where_row_starts_sent_a_kernel_outside_they_are_what_was_wrong_first() -> None:
    name = "load outside Q_Extend in _fwd_kernel"
    because = list(b"qo_indptr 0 -1 0")
    [verdict] = memory.judge(CASE, trace((-1, name, [-2, 24]), (-1, "starts of " + name, because), (0, "launches", 3)))
    assert verdict.where == name, "it is the same failure, whatever it follows from"
    assert str(verdict.cell) == "before the first step, qo_indptr[0,0] is -1, expected 0"


def test_without_a_launch_nothing_is_known_and_without_a_finding_it_passes() -> None:
    statuses = [
        verdict.status
        for launches in (0, 2)
        for verdict in memory.judge(CASE, trace((-1, "launches", 0), (0, "launches", launches)))
    ]
    assert statuses == [Status.UNKNOWN, Status.PASS]


def test_it_is_asked_where_memory_was_watched() -> None:
    assert memory.judge in asked(CASE, trace((0, "launches", 1)))
    assert memory.judge not in asked(CASE, Trace(ended=End(how=Termination.DONE)))
