"""The graph that is launched is the smallest captured one that holds the batch; one that none holds is eager's."""

from __future__ import annotations

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.trace import Trace

ORACLE = "bucket"
RAW = "size of the batch"
BUCKET = "bucket used"
TAKEN = "a batch taken that no graph holds"
REFUSED = "a batch refused that a graph holds"


def judge(case: Case, trace: Trace) -> Verdict:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step, asked in enumerate(case.steps):
        requests = len(asked.requests)
        taken = record.scalar(step, "asked", "can_run")
        if taken is not None:
            compared += 1
            held = case.setup.replays(requests, asked.hidden)
            if bool(taken) != held:
                cell = Cell(step=step, buffer="can_run", row=0, column=0, got=str(taken), want=str(int(held)))
                problem = "refused, though a graph holds it" if held else "taken, though no graph holds it"
                detail = f"In step {step} a batch of {requests} was {problem}: buckets {case.setup.capture_bs}."
                wrongs.append(Wrong(where=REFUSED if held else TAKEN, detail=detail, cell=cell))
        if not case.setup.replays(requests, asked.hidden):
            continue
        wanted = (("raw_bs", requests, RAW), ("bs", case.setup.bucket(requests), BUCKET))
        for name, want, where in wanted:
            got = record.scalar(step, "launch", name)
            if got is None:
                continue
            compared += 1
            if got != want:
                cell = Cell(step=step, buffer=name, row=0, column=0, got=str(got), want=str(want))
                detail = (
                    f"In step {step} a batch of {requests} was launched with {name} {got}, expected {want} "
                    f"of the buckets {case.setup.capture_bs}."
                )
                wrongs.append(Wrong(where=where, detail=detail, cell=cell))
    return conclude(ORACLE, wrongs, compared, nothing="no graph launched", order=(TAKEN, REFUSED, RAW, BUCKET))
