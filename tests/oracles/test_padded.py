"""Batches that MLP synchronisation pads, and the lists of the scheduler's."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import padded
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.cases import case_of, setup_of

CASE = case_of(setup_of("draft"))


def trace_of(**counts: list[tuple[int, int]]) -> Trace:
    seen = (RecordedArray(step=-1, path=Recorded.PADDED, name=name, array=np.array(n)) for name, n in counts.items())
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


@pytest.mark.parametrize(
    ("counts", "where"),
    [
        ({"rows": [(0, 0), (2, 2)], "prefix_lens": [(2, 2)]}, ""),
        ({"rows": [(0, 0), (0, 2)]}, padded.ROWS),
        ({"rows": [(1, 1)], "prefix_lens": [(1, 3)]}, padded.LISTS),
    ],
)
def test_padding_lasts_for_one_forward(counts: dict[str, list[tuple[int, int]]], where: str) -> None:
    (verdict,) = padded.judge(CASE, trace_of(**counts))
    assert (verdict.status, verdict.where) == (Status.FAIL if where else Status.PASS, where)


def test_nothing_is_judged_where_nothing_was_padded() -> None:
    (verdict,) = padded.judge(CASE, trace_of())
    assert verdict.status is Status.UNKNOWN
