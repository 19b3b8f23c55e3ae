"""A sound trace of two steps, the second padded, for the tests of oracles that change it by hand."""

from __future__ import annotations

from dataclasses import replace

from repro.cases.case import Case, Request, Setup, Step
from repro.traces.finding import Status, Verdict
from tests.builders.toy_traces import toy_trace

PASS, UNKNOWN, FAIL = Status.PASS, Status.UNKNOWN, Status.FAIL

SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=5, page_size=1)
FULL = Step(requests=tuple(Request(slot=slot, seq_len=9 + slot, data=slot) for slot in (1, 2, 3, 4)))
THREE = Step(requests=tuple(Request(slot=slot, seq_len=4 * slot, data=40 + slot) for slot in (5, 1, 3)))
CASE = Case(setup=SETUP, steps=(FULL, THREE))
PADDED, RAW, BS = 1, 3, 4  # the step whose row 3 is padding
_TRACE = toy_trace(CASE)
# Of the padded step no reference was asked.
SOUND = replace(_TRACE, seen=tuple(seen for seen in _TRACE.seen if (seen.step, seen.path) != (PADDED, "reference")))


def told(verdict: Verdict) -> tuple[Status, str]:
    return verdict.status, verdict.where
