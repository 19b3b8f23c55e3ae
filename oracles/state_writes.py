"""Recurrent states change only in the slots of the batch's requests: not in slot 0, which is for padding, not in slots
of other requests, and not in free slots."""

from __future__ import annotations

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import BOTH, Recorded
from repro.traces.trace import Array, Trace

ORACLE = "state_writes"
OWNED = "owned"
PADDING = 0  # the state slot of padded rows


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if no path changed any state."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        arrays = record.path(step, Recorded.STATE_SLOTS)
        for name, changed in arrays.items():
            path, _, kind = name.partition(".")
            if path not in BOTH:
                continue
            compared += len(changed) if arrays[OWNED].size else 1
            astray = np.setdiff1d(changed, arrays[OWNED])
            if astray.size:
                wrongs.append(_wrong(step, path, kind, astray))
    return conclude_each(ORACLE, wrongs, compared, nothing="no recurrent state changed")


def _wrong(step: int, path: str, kind: str, astray: Array) -> Wrong:
    slot = int(astray[0])
    whose = "padding" if slot == PADDING else "no request of the batch"
    cell = Cell(step=step, buffer=f"{kind} states", row=slot, column=0, got="written", want="untouched")
    detail = f"The {path} path of step {step} wrote {len(astray)} {kind} states of {whose}, first slot {slot}."
    return Wrong(where=f"{path}: {kind} of {whose}", detail=detail, cell=cell)
