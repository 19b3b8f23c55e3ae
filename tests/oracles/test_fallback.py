"""Graphs that are captured and not taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import fallback
from repro.cases.rows.serving import FULL
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.cases import case_of, setup_of

SETUP = setup_of("round", "fa3", prefill_max_bs=32, prefill_backend=FULL, slots=4, context_len=16)
SIZES = [8, 16, 32]
TAKEN, REFUSED = 1, 0
PLAIN, OTHERWISE = 1, 0


def trace_of(name: str, answers: list[tuple[int, int, int]], sizes: list[int]) -> Trace:
    arrays = {name: answers, f"{name} sizes": sizes}
    seen = (
        RecordedArray(step=-1, path=Recorded.GRAPHS_ASKED, name=each, array=np.array(array))
        for each, array in arrays.items()
    )
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


@pytest.mark.parametrize(
    ("name", "answers", "sizes", "where"),
    [
        ("verify", [(2, PLAIN, TAKEN)], [2], ""),
        ("verify", [(2, PLAIN, TAKEN), (3, PLAIN, REFUSED), (1, OTHERWISE, REFUSED)], [2], ""),
        ("verify", [(2, PLAIN, TAKEN), (1, PLAIN, REFUSED)], [2], f"verify {fallback.REFUSED}"),
        ("prefill", [(16, PLAIN, TAKEN), (33, PLAIN, REFUSED), (3, PLAIN, REFUSED)], SIZES, ""),
        ("prefill", [(16, PLAIN, TAKEN), (4, PLAIN, REFUSED)], SIZES, f"prefill {fallback.REFUSED}"),
        ("prefill", [(9, PLAIN, TAKEN)], [8, 16], fallback.SIZES_OF_PREFILLS),
    ],
)
def test_a_batch_runs_through_the_graph_that_holds_it(
    name: str, answers: list[tuple[int, int, int]], sizes: list[int], where: str
) -> None:
    (verdict,) = fallback.judge(case_of(SETUP), trace_of(name, answers, sizes))
    assert (verdict.status, verdict.where) == (Status.FAIL if where else Status.PASS, where)


def test_without_padding_a_graph_holds_its_own_size_alone() -> None:
    trace = trace_of("verify", [(1, PLAIN, REFUSED), (2, PLAIN, TAKEN)], [2])
    (verdict,) = fallback.judge(case_of(replace(SETUP, padded=False)), trace)
    assert verdict.status is Status.PASS


def test_nothing_is_judged_where_no_graph_holds_a_batch() -> None:
    (verdict,) = fallback.judge(case_of(SETUP), trace_of("verify", [(3, PLAIN, REFUSED)], [2]))
    assert verdict.status is Status.UNKNOWN
