"""The origin of a wrong value of an input buffer: the line of sglang that wrote that row in this call or, if none did,
the earlier call whose value is still there. From a trace in which writes were noted (runners/sessions/writes.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repro.cases.case import Case
from repro.shrinking.first_divergence import of_run
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

FACT = "writes of call "


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write of sglang into rows first..last of a buffer, before the graph was launched. place: its line."""

    buffer: str
    first: int
    last: int
    place: str

    def reaches(self, row: int) -> bool:
        return self.first <= row <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """cell: the first wrong value. oracle: that found it. padded: whether its row is padding. writes: those into the
    buffer in the same call. writer: the last of them that reached the row, None if none did. left_by: then the call
    whose value it still holds, -1 if none is known; left_at: the line that wrote it there; left_slot: the request slot
    that had the row in that call, -1 if it was padding too."""

    cell: Cell
    oracle: str
    padded: bool
    writes: tuple[Write, ...]
    writer: Write | None
    left_by: int = -1
    left_at: str = ""
    left_slot: int = -1


def origin(case: Case, trace: Trace, verdicts: Sequence[Verdict]) -> Origin | None:
    """The origin of the first wrong value; None if no oracle named one, or if its buffer was not watched."""
    first = of_run(trace, verdicts)
    cell = first.cell
    if cell is None or trace.get(cell.step, Recorded.LAUNCH, cell.buffer) is None:
        return None
    raw_bs = trace.get(cell.step, Recorded.LAUNCH, "raw_bs")
    padded = raw_bs is not None and cell.row >= int(raw_bs)
    of_call = tuple(write for write in writes(trace.facts, cell.step) if write.buffer == cell.buffer)
    writer = _last_over(of_call, cell.row)
    result = Origin(cell=cell, oracle=first.oracle, padded=padded, writes=of_call, writer=writer)
    return result if writer else _with_earlier_call(result, case, trace)


def writes(facts: Mapping[str, str], step: int) -> Iterator[Write]:
    """All that were noted in this call, in their order."""
    for buffer, first, last, place in json.loads(facts.get(f"{FACT}{step}", "[]")):
        yield Write(buffer=buffer, first=first, last=last, place=place)


def _last_over(writes: Sequence[Write], row: int) -> Write | None:
    return next((write for write in reversed(writes) if write.reaches(row)), None)


def _with_earlier_call(origin: Origin, case: Case, trace: Trace) -> Origin:
    """The origin with the latest earlier call that wrote the row and launched with the value that is still there."""
    cell = origin.cell
    now = _row(trace, cell.step, cell)
    for step in range(cell.step - 1, -1, -1):
        of_call = (write for write in writes(trace.facts, step) if write.buffer == cell.buffer)
        writer = _last_over(tuple(of_call), cell.row)
        then = _row(trace, step, cell)
        if (
            writer is None
            or now is None
            or then is None
            or not np.array_equal(now, then, equal_nan=now.dtype.kind == "f")
        ):
            continue
        requests = case.steps[step].requests
        slot = requests[cell.row].slot if cell.row < len(requests) else -1
        return Origin(
            cell=cell,
            oracle=origin.oracle,
            padded=origin.padded,
            writes=origin.writes,
            writer=None,
            left_by=step,
            left_at=writer.place,
            left_slot=slot,
        )
    return origin


def _row(trace: Trace, step: int, cell: Cell) -> Array | None:
    array = trace.get(step, Recorded.LAUNCH, cell.buffer)
    return None if array is None or not 0 <= cell.row < len(array) else np.atleast_1d(array[cell.row])


def lines(origin: Origin) -> Iterator[str]:
    """For a person."""
    yield f"first wrong: {origin.cell} ({origin.oracle}), a {'padded' if origin.padded else 'real'} row"
    for write in origin.writes:
        span = f"row {write.first}" if write.first == write.last else f"rows {write.first} to {write.last}"
        yield f"in call {origin.cell.step}, {span} of {origin.cell.buffer} written by {write.place or 'none of sglang'}"
    if origin.writer:
        yield f"so the value was written by {origin.writer.place}"
    elif origin.left_by >= 0:
        whose = f", of request slot {origin.left_slot}" if origin.left_slot >= 0 else ""
        left = f"its value was left by call {origin.left_by}{whose}, written by {origin.left_at}"
        yield f"no write of that call reached the row: {left}"
    else:
        yield "no write into that row was seen in any call: a compiled kernel made it, or it was never written"
