"""A case run several times: each attempt with its verdicts, and how often one failure comes back (k of n)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace

Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a case. verdicts: of all oracles; none where the run did not take place."""

    trace: Trace
    verdicts: tuple[Verdict, ...] = ()

    @property
    def took_place(self) -> bool:
        return self.trace.ended.how.took_place

    def failure(self, fingerprint: str = "") -> Verdict | None:
        return failure(self.verdicts, fingerprint)


def failure(verdicts: Iterable[Verdict], fingerprint: str = "") -> Verdict | None:
    """The first FAIL with this fingerprint, or the first of all if none is asked for."""
    for verdict in verdicts:
        if verdict.status is Status.FAIL and fingerprint in ("", verdict.fingerprint):
            return verdict
    return None


def attempts(run: Run, judge: Judge, case: Case, tries: int) -> Iterator[Attempt]:
    """Up to `tries` runs of a case, each made when it is asked for: a caller that has seen enough stops asking. Runs
    that did not take place are not judged."""
    for _ in range(tries):
        trace = run(case)
        yield Attempt(trace=trace, verdicts=tuple(judge(case, trace)) if trace.ended.how.took_place else ())


def confirm(run: Run, judge: Judge, case: Case, fingerprint: str, tries: int) -> tuple[int, int]:
    """The number of runs that failed with this fingerprint, and of all runs; another failure is no confirmation.

    `run` gives every run a fresh process. A run that did not take place counts neither way: tried
    is then below `tries`, and 0 if the case could not be run at all.
    """
    made = [attempt for attempt in attempts(run, judge, case, tries) if attempt.took_place]
    return sum(attempt.failure(fingerprint) is not None for attempt in made), len(made)
