"""Kernels keep to the memory that they were given: no load and no store outside of it, and no two programs that store
different values to one place. Recorded by the emulated engine alone."""

from __future__ import annotations

from collections.abc import Mapping

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.trace import Array, Trace

ORACLE = "memory"
PATH = "memory"
LAUNCHES = "launches"  # how many were watched


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN where no launch was watched. The first finding by name: it does not depend on the step it shows in."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    launches = 0
    for step in range(-1, len(case.steps)):
        seen = record.path(step, PATH)
        launches += record.scalar(step, PATH, LAUNCHES) or 0
        wrongs += _wrongs(step, seen)
    names = sorted({wrong.where for wrong in wrongs})
    return conclude(ORACLE, wrongs, launches, nothing="no launch of a kernel was watched", order=names)


def recorded(trace: Trace) -> bool:
    """Whether this trace is of an engine that watches memory."""
    return any(seen.path == PATH for seen in trace.seen)


def _wrongs(step: int, seen: Mapping[str, Array]) -> list[Wrong]:
    wrongs = []
    for name, numbers in seen.items():
        if name == LAUNCHES:
            continue
        index, *more = numbers.reshape(-1).tolist()
        place = f"element {index} of {more[0]}" if more else f"element {index}"
        cell = Cell(step=step, buffer=name, row=0, column=index, got=place, want="inside, by one program")
        wrongs.append(Wrong(where=name, detail=f"In step {step}: {name}, {place}.", cell=cell))
    return wrongs
