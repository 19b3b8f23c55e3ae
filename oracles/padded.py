"""MLP synchronisation pads a batch for one forward alone: a batch that it is given has as many rows as it says, though
an earlier forward padded it, and the lists of the scheduler's batch have an entry for each of its requests."""

from __future__ import annotations

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "padded"
ROWS, LISTS = "rows of a batch to pad", "lists of the scheduler's batch"
COUNT, PADDED = "requests", "rows"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    arrays = Record(trace).path(-1, Recorded.PADDED)
    wrongs: list[Wrong] = []
    compared = 0
    for name, counts in arrays.items():
        compared += len(counts)
        for number, (requests, rows) in enumerate(counts.tolist()):
            if rows != requests:
                cell = Cell(step=-1, buffer=name, row=number, column=1, got=str(rows), want=str(requests))
                what = "is given to be padded" if name == PADDED else f"has {name} behind a forward"
                detail = f"A batch of {requests} requests {what} with {rows} {'rows' if name == PADDED else 'entries'}."
                wrongs.append(Wrong(where=ROWS if name == PADDED else LISTS, detail=detail, cell=cell))
                break
    return conclude_each(ORACLE, wrongs, compared, nothing="no batch was padded")
