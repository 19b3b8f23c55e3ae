"""Whether a failure comes back: k of n runs, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace

Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]


def failure(verdicts: Iterable[Verdict], fingerprint: str = "") -> Verdict | None:
    """The first FAIL with this fingerprint, or the first at all if none is asked for."""
    for verdict in verdicts:
        if verdict.status is Status.FAIL and fingerprint in ("", verdict.fingerprint):
            return verdict
    return None


def confirm(run: Run, judge: Judge, case: Case, fingerprint: str, tries: int) -> tuple[int, int]:
    """How many of how many runs failed with this fingerprint; another failure is no confirmation.

    `run` gives every run a fresh process. A run that did not take place counts neither way: tried
    is then below `tries`, and 0 if we could not run the case at all.
    """
    failed = tried = 0
    for _ in range(tries):
        trace = run(case)
        if not trace.ended.how.took_place:
            continue
        tried += 1
        failed += failure(judge(case, trace), fingerprint) is not None
    return failed, tried
