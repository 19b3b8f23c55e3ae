"""Every sequence that attention reads fits its row of the page table, so no read continues into the next row."""

from __future__ import annotations

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "row_width"
ROWS = "page_rows"
NARROW = "page table row too narrow"


def judge(case: Case, trace: Trace) -> Verdict:
    """Padded rows are judged too: kernels read them."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        rows = record.path(step, Recorded.METADATA).get(ROWS)
        if rows is None:
            continue
        compared += len(rows)
        longer = [row for row in rows.tolist() if row[2] > row[3]]
        if longer:
            table, row, length, room = longer[0]
            cell = Cell(step=step, buffer=f"page table {table}", row=row, column=room, got=str(length), want=str(room))
            detail = (
                f"In step {step}, sequence {row} of page table {table} is {length} tokens long, in a row with room for "
                f"{room}."
            )
            wrongs.append(Wrong(where=NARROW, detail=detail, cell=cell))
    return conclude(ORACLE, wrongs, compared, nothing="no page table recorded")


def recorded(trace: Trace) -> bool:
    """True if attention reads page tables in this trace."""
    return any(seen.name == ROWS for seen in trace.seen)
