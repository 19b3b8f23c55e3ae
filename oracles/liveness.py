"""A graph uses no memory that sglang has let go of: an input that was freed, or that its owner has replaced. Recorded
only by the emulated engine; memory that a graph allocated itself stays with its pool."""

from __future__ import annotations

import re

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "liveness"
INPUTS = "inputs"
# Lines move from release to release.
_LINE = re.compile(r":\d+\b")


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each input. It is recorded by the way from its owner, or by its form if it never had an owner,
    with its fate and sglang's lines in UTF-8."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        compared += record.scalar(step, Recorded.LIVENESS, INPUTS) or 0
        for name, words in sorted(record.path(step, Recorded.LIVENESS).items()):
            if name == INPUTS:
                continue
            fate, _, more = words.tobytes().decode().partition(": ")
            cell = Cell(step=step, buffer=name, row=-1, column=-1, got=fate, want="held")
            detail = f"In step {step} a graph is replayed that reads or writes {name}, which is {fate}: {more}."
            wrongs.append(Wrong(where=_where(more), detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, compared, nothing="no recorded graph was launched")


def _where(lines: str) -> str:
    """The function that made the input, else that which captured it: the same whatever became of it, and whichever
    attribute held it."""
    captured, _, made = lines.partition("captured at ")[2].partition(", made at ")
    return f"input {'made' if made else 'captured'} in {_LINE.sub('', made or captured)}"
