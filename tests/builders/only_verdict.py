"""Oracles that may have several verdicts: the only one, or where they all fail."""

from __future__ import annotations

from collections.abc import Iterable

from oracles.trace_index import Judge
from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace


def only(judge: Judge, case: Case, trace: Trace) -> Verdict:
    said = judge(case, trace)
    [verdict] = (said,) if isinstance(said, Verdict) else said
    return verdict


def wheres(verdicts: Iterable[Verdict]) -> dict[str, set[str]]:
    """The places of each oracle that fails."""
    found: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.status is Status.FAIL:
            found.setdefault(verdict.oracle, set()).add(verdict.where)
    return found
