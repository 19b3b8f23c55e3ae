"""Every request ends, without an abort that nobody requested, within a limit of iterations of the event loop, and every
update of weights is made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracles.text import ABORTED as TEXT_ABORTED
from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "progress"
STUCK, ABORTED = "a request never ends", "a request is aborted"
REFUSED = "an update of weights fails"
HOW = {0: STUCK, TEXT_ABORTED: ABORTED}


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN if the event loop did not end."""
    record = Record(trace)
    count = trace.facts.get("iterations", "")
    wrongs: list[Wrong] = []
    compared = 0
    for number in range(len(case.steps)):
        wrongs += _refused(record, trace, number)
        ended = record.path(number, Recorded.SERVED).get("ended")
        if ended is None:
            continue
        compared += len(ended)
        aborted = record.path(number, Recorded.SERVED).get("aborted", np.zeros(len(ended)))
        for row, how in enumerate(ended.tolist()):
            if how in HOW and not (how == TEXT_ABORTED and aborted[row]):
                cell = Cell(step=number, buffer="ended", row=row, column=0, got=str(how), want="1")
                detail = f"Of {count} iterations of the event loop: {HOW[how]}, request {row} of step {number}."
                wrongs.append(Wrong(where=HOW[how], detail=detail, cell=cell))
    return conclude(ORACLE, wrongs, compared, nothing="the event loop did not come to its end")


def _refused(record: Record, trace: Trace, number: int) -> Iterator[Wrong]:
    done = record.path(number, Recorded.SERVED).get("update")
    if done is not None and not done.all():
        words = trace.facts.get(f"update refused in step {number}", "")
        cell = Cell(step=number, buffer="update", row=0, column=0, got="0", want="1")
        yield Wrong(where=REFUSED, detail=f"Before step {number} weights are not updated: {words}", cell=cell)
