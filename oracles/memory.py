"""Kernels keep to the memory that they were given: no load and no store outside of it, and no two programs that store
different values to one place. Recorded by the emulated engine alone."""

from __future__ import annotations

from collections.abc import Mapping

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "memory"
LAUNCHES = "launches"  # how many were watched
# In front of a finding's name: the row starts that it follows from, as NAME COLUMN GOT WANT in UTF-8.
BECAUSE = "starts of "


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN where no launch was watched. What was done to different arguments or in different kernels is several
    failures."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    launches = 0
    for step in range(-1, len(case.steps)):
        seen = record.path(step, Recorded.MEMORY)
        launches += record.scalar(step, Recorded.MEMORY, LAUNCHES) or 0
        wrongs += _wrongs(step, seen)
    return conclude_each(ORACLE, wrongs, launches, nothing="no launch of a kernel was watched")


def _wrongs(step: int, seen: Mapping[str, Array]) -> list[Wrong]:
    wrongs = []
    for name, numbers in seen.items():
        if name == LAUNCHES or name.startswith(BECAUSE):
            continue
        index, *more = numbers.reshape(-1).tolist()
        place = f"element {index} of {more[0]}" if more else f"element {index}"
        cell = Cell(step=step, buffer=name, row=0, column=index, got=place, want="inside, by one program")
        detail = f"In step {step}: {name}, {place}."
        if BECAUSE + name in seen:  # what was wrong first is where the kernel was sent to
            buffer, column, got, want = seen[BECAUSE + name].tobytes().decode().split()
            cell = Cell(step=step, buffer=buffer, row=0, column=int(column), got=got, want=want)
            detail += f" {buffer} has {got} at {column}, which cannot be."
        wrongs.append(Wrong(where=name, detail=detail, cell=cell))
    return wrongs
