"""All oracles, the one way to ask them, and what their verdicts together say about a run."""

from __future__ import annotations

from collections.abc import Iterable

from oracles import (
    bucket,
    callers_batch,
    ended,
    graph_equals_eager,
    kv_indices,
    kv_moves,
    kv_writes,
    metadata_shape,
    slot0_padding,
    staged,
)
from oracles.record import Judge
from repro.case import Case
from repro.finding import Status, Verdict, worst
from repro.trace import Trace

ALL: tuple[Judge, ...] = (
    ended.judge,
    bucket.judge,
    staged.judge,
    slot0_padding.judge,
    metadata_shape.judge,
    kv_indices.judge,
    kv_writes.judge,
    kv_moves.judge,
    graph_equals_eager.judge,
    callers_batch.judge,
)

# A pass needs both: that the run came to its end, and that what its runner is driven for was compared: a graph's
# results with eager's, or what the session of a runner without a graph records.
ENDED = ended.ORACLE
COMPARED = frozenset({graph_equals_eager.ORACLE, kv_moves.ORACLE})

# The `where` of an oracle that raised: it is broken, or the record is not what it reads.
RAISED = "the oracle itself raised"


def judge_all(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """One verdict per oracle, in the order of ALL. An exception in an oracle becomes UNKNOWN with where RAISED."""
    return tuple(_ask(judge, case, trace) for judge in ALL)


def _ask(judge: Judge, case: Case, trace: Trace) -> Verdict:
    try:
        return judge(case, trace)
    except Exception as error:  # becomes the verdict: one broken oracle must not take the others along
        name = judge.__module__.rpartition(".")[2]
        detail = f"{type(error).__name__}: {error}"
        return Verdict(oracle=name, status=Status.UNKNOWN, where=RAISED, detail=detail)


def overall(verdicts: Iterable[Verdict]) -> Status:
    """What a whole run is worth, for an exit code.

    FAIL if any oracle says so. UNKNOWN if the run did not end well, if none of COMPARED passed, or if one raised.
    Otherwise PASS: another oracle's UNKNOWN then only says that the case did not exercise its property (an unpadded
    case has no padding to judge), which is no doubt about what was exercised.
    """
    told = tuple(verdicts)
    if worst(told) is Status.FAIL:
        return Status.FAIL
    sure = {verdict.oracle for verdict in told if verdict.status is Status.PASS}
    if ENDED not in sure or not sure & COMPARED or any(verdict.where == RAISED for verdict in told):
        return Status.UNKNOWN
    return Status.PASS
