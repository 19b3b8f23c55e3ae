"""A pass without a graph gives the reference's values for every token of the batch and no others, and writes only the
KV slots of these tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracles.reference_record import Outside, references_of
from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "verified"
SLOTS, ROWS, OUTPUT, VALUES = "KV slots written", "rows of an output", "values of an output", "KV values written"
KV_SLOTS = "kv_slots"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if no pass ended."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step, case_step in enumerate(case.steps):
        outputs = record.path(step, Recorded.EAGER)
        slots = record.path(step, Recorded.INPUT).get("out_cache_loc")
        if slots is None or KV_SLOTS not in outputs:
            continue
        compared += 1
        wrongs += _wrong_slots(case, step, outputs[KV_SLOTS], slots)
        count, bounds = len(case_step.requests), {}
        for name in outputs.keys() - {KV_SLOTS}:
            got, want = len(outputs[name]), count * case.setup.num_draft_tokens
            if got == want:
                bounds[name] = outputs[name].reshape(count, -1)
                continue
            cell = Cell(step=step, buffer=name, row=0, column=0, got=str(got), want=str(want))
            detail = f"In step {step} {name} has rows for {got} tokens, and the batch has {want}."
            wrongs.append(Wrong(where=ROWS, detail=detail, cell=cell))
        if (references := references_of(record, step, count)) is None:
            continue
        outside = [references.eager.outside(Recorded.EAGER, bounds, row) for row in range(count)]
        outside.append(references.eager.whole_outside(Recorded.EAGER, bounds))
        wrongs += [_wrong(step, place) for place in outside if place]
    return conclude_each(ORACLE, wrongs, compared, nothing="no pass came to its end")


def _wrong_slots(case: Case, step: int, written: Array, slots_given: Array) -> Iterator[Wrong]:
    """Padding writes into the reserved page."""
    changed = written.astype(np.int64)
    changed = changed[changed >= case.setup.page_size]
    for slots, state in (
        (np.setdiff1d(slots_given, changed), "untouched"),
        (np.setdiff1d(changed, slots_given), "written"),
    ):
        if slots.size:
            want = "written" if state == "untouched" else "untouched"
            cell = Cell(step=step, buffer="kv", row=int(slots[0]), column=0, got=state, want=want)
            yield Wrong(where=SLOTS, detail=f"Step {step} left KV slot {slots[0]} {state}.", cell=cell)


def _wrong(step: int, outside: Outside) -> Wrong:
    return outside.wrong(VALUES if outside.buffer == "kv" else OUTPUT, step, outside.row, "eager is wrong")
