"""Counts in the last message of a request, on records made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import reported
from repro.cases.case import Case, Request, Setup, Step
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace

SETUP = Setup(runner="round", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=4, pool=40)
CASE = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=5, data=1, further=5),)),))
# A token of the prefill, then rounds of three and of two tokens; the overlap schedule runs one more.
ROUNDS = ((5, 3), (8, 2), (10, 4))


def failed(case: Case = CASE, rounds: int = 2, **changes: int) -> set[str]:
    """The counts that are wrong in a record with so many of these rounds, in which the message counts what came."""
    counts = {"prompt_tokens": 5, "completion_tokens": 6, "spec_verify_ct": 2, "spec_num_correct_drafts": 3}
    counts |= {"retraction_counts": 0, "ended": 1} | changes
    arrays = {(0, "served", name): [count] for name, count in counts.items()} | {(0, "served", "tokens"): [[7] * 6]}
    for number, (before, accepted) in enumerate(ROUNDS[:rounds]):
        values = {"requests": [0], "seq_lens": [before], "accepted": [accepted]}
        arrays |= {(number, "round_graph", name): value for name, value in values.items()}
    seen = (RecordedArray(step=n, path=path, name=name, array=np.array(v)) for (n, path, name), v in arrays.items())
    verdicts = reported.judge(case, Trace(ended=End(how=Termination.DONE), seen=tuple(seen)))
    assert changes.get("ended", 1) == 1 or [v.status for v in verdicts] == [Status.UNKNOWN]
    return {verdict.where for verdict in verdicts if verdict.status is Status.FAIL}


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "spec_verify_ct", "spec_num_correct_drafts"])
def test_each_count_is_the_requests_own(name: str) -> None:
    assert failed() == failed(CASE, 2, **{name: -1}) == set()  # a release may lack one
    assert failed(CASE, 2, **{name: 1}) == {name}


def test_a_round_behind_the_end_is_not_counted() -> None:
    assert failed(rounds=3) == set()
    assert failed(rounds=3, spec_verify_ct=3, spec_num_correct_drafts=6) == {
        "spec_verify_ct",
        "spec_num_correct_drafts",
    }


def test_a_round_that_a_retraction_drops_may_be_missing() -> None:
    overlap = replace(CASE, setup=replace(SETUP, overlap=True))
    assert failed(overlap, retraction_counts=1, spec_verify_ct=1) == set()
    assert failed(overlap, retraction_counts=1, spec_verify_ct=0) == {"spec_verify_ct"}
    assert failed(CASE, retraction_counts=1, spec_verify_ct=1) == {"spec_verify_ct"}


def test_nothing_is_said_of_requests_that_do_not_end() -> None:
    assert failed(ended=0, prompt_tokens=1) == set()
