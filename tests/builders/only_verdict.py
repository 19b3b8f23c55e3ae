"""Oracles that may have several verdicts: the only one, or where they all fail."""

from __future__ import annotations

from collections.abc import Iterable

from oracles.trace_index import Judge
from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace


def only(judge: Judge, case: Case, trace: Trace) -> Verdict:
    verdicts = judge(case, trace)
    [verdict] = (verdicts,) if isinstance(verdicts, Verdict) else verdicts
    return verdict


def wheres(verdicts: Iterable[Verdict]) -> dict[str, set[str]]:
    """The places of each oracle that fails."""
    reasons: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.status is Status.FAIL:
            reasons.setdefault(verdict.oracle, set()).add(verdict.where)
    return reasons
