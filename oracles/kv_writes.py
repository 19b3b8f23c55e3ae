"""Both paths write KV only to the caller's slots, or to reserved slot 0."""

from __future__ import annotations

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import BOTH, Recorded
from repro.traces.trace import Array, Trace

ORACLE = "kv_writes"
NOTHING = np.empty(0, dtype=np.int64)
RESERVED = 0  # the one slot that padding writes to, also where a whole page is reserved around it


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        # A runner that is given no slots writes none, which is to be seen as well.
        allocated = record.path(step, Recorded.INPUT).get("out_cache_loc", NOTHING)
        allowed = np.concatenate(
            [allocated, record.path(step, Recorded.INPUT).get("rewritten", NOTHING), [RESERVED]], axis=None
        )
        for path in BOTH:
            written = record.path(step, path).get("kv_slots")
            if written is None:
                continue
            compared += len(written) if allocated.size else 1
            astray = np.setdiff1d(written, allowed)
            if astray.size:
                wrongs.append(_wrong(step, path, int(astray[0]), int(astray.size), record.table(step)))
    return conclude_each(ORACLE, wrongs, compared, label="slots not given,", nothing="no KV slot changed")


def _wrong(step: int, path: str, slot: int, count: int, table: Array | None) -> Wrong:
    owner = "a slot that no request owns"
    if table is not None:
        places = np.argwhere(table == slot)
        if len(places):
            row, position = (int(n) for n in places[0])
            owner = f"position {position} of request slot {row}"
    cell = Cell(step=step, buffer="kv", row=slot, column=0, got="written", want="untouched")
    detail = f"The {path} path of step {step} wrote {count} KV slots that do not belong to it, first {slot}, {owner}."
    return Wrong(where=path, detail=detail, cell=cell)
