"""Finds what went wrong first: a failing case is run once more in a process of its own, and after a crash on a GPU
again where every launch is waited for. repro/shrinking/first_divergence.py says what the runs establish."""

from __future__ import annotations

from collections.abc import Sequence

from repro.cases.case import Case
from repro.shrinking.first_divergence import FirstDivergence, Judge, locate, of_outcome
from repro.shrinking.replay import Outcome
from repro.traces.finding import Verdict
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from runners.processes.sanitizer import PROGRAM, Access


def locate_first(pool: Pool, case: Case, verdict: Verdict, judge: Judge) -> FirstDivergence:
    """The first divergence of this failure of the case on the pool's target."""

    def run_waiting(case: Case) -> Trace:
        with pool.waiting() as other:
            return other.run(case)

    # Elsewhere nothing is asynchronous.
    asynchronous = pool.target.engine == "cuda"
    return locate(case, verdict, pool.run_fresh, judge, run_waiting if asynchronous else None)


def extra_notes(pool: Pool, outcome: Outcome, judge: Judge, accesses: Sequence[Access]) -> list[str]:
    """Notes on an outcome besides its verdicts: a sanitizer's reports, and the first divergence."""
    notes = [f"{PROGRAM}: {access}" for access in accesses]
    if not outcome.verdict:
        return notes
    # A sanitizer waits for every launch itself.
    crashed = outcome.ended.how is not Termination.DONE and pool.target.engine == "cuda" and not accesses
    first = locate_first(pool, outcome.case, outcome.verdict, judge) if crashed else of_outcome(outcome)
    return [*notes, str(first)] if str(first) else notes
