"""Each access to memory that another stream wrote, or read, is put behind that by an event, a wait or the host. The
emulated engine alone, which runs everything in one order, records it."""

from __future__ import annotations

import re

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "order"
ACCESSES = "accesses"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each two places between which nothing waits."""
    seen = Record(trace).path(-1, Recorded.ORDER)
    wrongs = []
    for name, words in seen.items():
        if name != ACCESSES:
            cell = Cell(step=-1, buffer=name, row=-1, column=-1, got="no order", want="a wait")
            detail = f"{name}: nothing orders {words.tobytes().decode()}."
            # Lines move from release to release.
            wrongs.append(Wrong(where=re.sub(r":\d+", "", name), detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, int(seen[ACCESSES]) if seen else 0, nothing="no access was looked at")
