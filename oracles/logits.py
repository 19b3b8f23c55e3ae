"""The target's logits for each accepted token match a float64 pass over prompt and text."""

from __future__ import annotations

import numpy as np

from oracles.text import TIE
from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "logits"
OFF = "logits of an accepted token"


def judge(case: Case, trace: Trace) -> Verdict:
    """Each is judged after the text that was served, right or wrong. UNKNOWN if no logits were recorded."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for number in range(len(case.steps)):
        served = record.path(number, Recorded.SERVED)
        if "off" not in served:
            continue
        for row, distances in enumerate(served["off"]):
            length = int((served["best"][row] >= 0).sum())
            seen = distances[:length]
            allowed = TIE * float(served["noise"][row])
            compared += int(np.isfinite(seen).sum())
            wrong = np.flatnonzero(seen > allowed)
            if wrong.size:
                at, got = int(wrong[0]), float(seen[wrong[0]])
                cell = Cell(step=number, buffer="logits", row=row, column=at, got=f"{got:.3g}", want=f"{allowed:.3g}")
                detail = (
                    f"The logits for token {at} of the text of request {row} of step {number} lie {got:.3g} off those "
                    f"in float64; rounding explains {allowed:.3g}."
                )
                wrongs.append(Wrong(where=OFF, detail=detail, cell=cell))
    return conclude(ORACLE, wrongs, compared, nothing="no logits seen")
