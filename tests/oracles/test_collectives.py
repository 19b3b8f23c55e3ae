"""The collectives of ranks: with graphs and without, with requests and without, and what one rank draws."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import collectives
from repro.cases.case import Case
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.cases import case_of, setup_of

CASE = case_of(setup_of("round", "triton"))
SUM, SENT = ["all_reduce", True, "float32", [4, 8]], ["broadcast", True, "int32", [4]]
TO_ALL, TO_ALL_64 = ["all_gather", False, "int32", [4]], ["all_gather", False, "int64", [0]]


def forward(*calls: list[Any], **facts: Any) -> dict[str, Any]:
    return {"requests": 2, "prefills": False, "samples": False, "padding": [], "calls": list(calls), **facts}


def judged(case: Case, graph: list[Any], eager: list[Any]) -> tuple[Status, str]:
    ways = {"graph": graph, "eager": eager}
    seen = (
        RecordedArray(
            step=-1,
            path=Recorded.COLLECTIVES,
            name=name,
            array=np.frombuffer(json.dumps(forwards).encode(), np.uint8),
        )
        for name, forwards in ways.items()
    )
    verdict = collectives.judge(case, Trace(ended=End(how=Termination.DONE), seen=tuple(seen)))
    return verdict.status, verdict.where


ROWS = replace(CASE, setup=replace(CASE.setup, tp_size=2))
BESIDE = replace(CASE, setup=replace(CASE.setup, dp_attention=True))
UNKNOWN = (Status.UNKNOWN, "no two forwards call alike")


@pytest.mark.parametrize(
    ("graph", "eager", "verdict"),
    [
        ([forward(SUM, SUM)], [forward(SUM, ["all_reduce", True, "float32", [2, 8]])], (Status.PASS, "")),
        ([forward(SUM, SUM)], [forward(SUM)], (Status.FAIL, collectives.GRAPHS)),
        ([forward(["all_reduce", True, "float16", [4, 8]])], [forward(SUM)], (Status.FAIL, collectives.GRAPHS)),
        ([forward(SUM)], [forward(SUM, requests=1), forward(SUM, SUM)], UNKNOWN),
        ([forward(SUM, samples=True)], [], (Status.FAIL, collectives.DRAWN)),
        ([forward(SUM, SENT, samples=True)], [], (Status.PASS, "")),
        ([forward(SUM, samples=True, prefills=True)], [], UNKNOWN),
    ],
)
def test_a_group_calls_the_same_by_graph_and_without(
    graph: list[Any], eager: list[Any], verdict: tuple[Status, str]
) -> None:
    assert judged(ROWS, graph, eager) == verdict


@pytest.mark.parametrize(
    ("forwards", "verdict"),
    [
        ([forward(SUM, TO_ALL), forward(["all_gather", False, "int32", [0]], requests=0)], (Status.PASS, "")),
        ([forward(SUM, TO_ALL), forward(TO_ALL_64, requests=0)], (Status.FAIL, collectives.IDLE)),
        ([forward(TO_ALL), forward(requests=0)], (Status.FAIL, collectives.IDLE)),
        ([forward(TO_ALL), forward(requests=0, padding=["SUM_LEN"])], UNKNOWN),
    ],
)
def test_a_rank_without_requests_calls_what_a_busy_one_does(forwards: list[Any], verdict: tuple[Status, str]) -> None:
    assert judged(BESIDE, forwards, []) == verdict
