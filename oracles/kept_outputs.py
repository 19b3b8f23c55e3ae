"""Values that a caller passed and a worker keeps do not change later: the batch of every call, and outputs that the
worker keeps while later graphs run (Family.kept of runners/releases)."""

from __future__ import annotations

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "kept_outputs"
COMPARED = "compared"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if no later call ran. The record has the changed rows, by the call's step and the name."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        compared += record.scalar(step, Recorded.KEPT, COMPARED) or 0
        for name, rows in record.path(step, Recorded.KEPT).items():
            if name == COMPARED or not rows.size:
                continue
            earlier, _, what = name.partition(".")
            row = int(rows.reshape(-1)[0])
            cell = Cell(step=step, buffer=what, row=row, column=0, got="other bits", want="as it was")
            detail = f"Row {row} of {what} of step {earlier} has changed by the end of step {step}'s graph."
            wrongs.append(Wrong(where=f"{what} after a later call", detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, compared, nothing="no later call")
