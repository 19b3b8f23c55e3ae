"""What went wrong first: a failing case is run once more in a process of its own, and after a crash on a GPU again
where every launch is waited for. repro/shrinking/first_divergence.py says what the runs establish."""

from __future__ import annotations

from collections.abc import Sequence

from repro.cases.case import Case
from repro.shrinking.first_divergence import Blame, Judge, established, told
from repro.shrinking.replay import Outcome
from repro.traces.finding import Verdict
from repro.traces.trace import How, Trace
from runners.processes.pool import Pool
from runners.processes.sanitizer import PROGRAM, Access


def locate_first(pool: Pool, case: Case, verdict: Verdict, judge: Judge) -> Blame:
    """What can be established about this failure of the case on the pool's target."""

    def run_waiting(case: Case) -> Trace:
        with pool.waiting() as other:
            return other.run(case)

    # Elsewhere nothing is asynchronous.
    asynchronous = pool.target.engine == "cuda"
    return established(case, verdict, pool.run_fresh, judge, run_waiting if asynchronous else None)


def extra_notes(pool: Pool, outcome: Outcome, judge: Judge, accesses: Sequence[Access]) -> list[str]:
    """What there is to say of an outcome besides its verdicts: what a sanitizer reported, and what was wrong first."""
    texts = [f"{PROGRAM}: {access}" for access in accesses]
    if not outcome.verdict:
        return texts
    # A sanitizer waits for every launch itself.
    crashed = outcome.ended.how is not How.DONE and pool.target.engine == "cuda" and not accesses
    blame = locate_first(pool, outcome.case, outcome.verdict, judge) if crashed else told(outcome)
    return [*texts, str(blame)] if str(blame) else texts
