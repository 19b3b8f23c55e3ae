"""The failures of a case that a change brings: those that its base does not show in the same case or, of a release
without a base, those that no known issue explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.check.guard import Compare, Compared, identity, steady
from fuzz.check.results import Results
from repro.cases.case import Case, Target
from repro.ledger.explain import Explained
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.replay import trouble
from repro.traces.finding import Status, Verdict


def with_base(base: Target, run_fresh: Run, judge: Judge, results: Results) -> Compare:
    """Runs each case on the base in a process of its own, unless its verdicts there are kept."""

    def compare(case: Case, failures: Sequence[Verdict]) -> Compared:
        doubt = ""

        def judged() -> Sequence[Verdict] | None:
            nonlocal doubt
            trace = steady(case, run_fresh, run_fresh)
            if trace.ended.how.took_place:
                return judge(case, trace)
            doubt = f"not run on {base}: {trouble(trace.ended)}"
            return None

        verdicts = results.of(case, judged)
        if verdicts is None:
            return Compared(doubt=doubt)
        there = {identity(verdict) for verdict in verdicts if verdict.status is Status.FAIL}
        brought = tuple(verdict for verdict in failures if identity(verdict) not in there)
        return Compared(brought=brought, why=f"{base} fails in the same way")

    return compare


def with_known_issues(explain: Callable[[Case, Target, Sequence[Verdict]], Explained], target: Target) -> Compare:
    """explain: an experiment (repro/ledger/explain.py). In a published release nothing is changed that fails
    in the same place, so that one experiment for each kind of failure is enough."""

    def compare(case: Case, failures: Sequence[Verdict]) -> Compared:
        explained = explain(case, target, failures)
        if explained.doubt:
            return Compared(doubt=explained.doubt)
        left = {identity(verdict) for verdict in explained.left}
        brought = tuple(verdict for verdict in failures if identity(verdict) in left)
        return Compared(brought=brought, why="; ".join(map(str, explained.issues)) or "known", general=True)

    return compare
