"""The failures of a case that a change brings: those that its base does not show in the same case or, of a release
without a base, those that no known issue explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.check.causes import Failing
from fuzz.check.guard import Compare, Compared, Ways, identity, shown, steady
from fuzz.check.results import Results
from repro.cases.case import Case, Target
from repro.ledger.explain import Explained
from repro.shrinking.confirm import Judge
from repro.shrinking.replay import trouble
from repro.traces.finding import Status, Verdict

# What known issues say of a case and its failures on a target. Behind them, the cases that come next.
Explain = Callable[[Case, Target, Sequence[Verdict], Sequence[Case]], Explained]


def with_base(base: Target, ways: Ways, judge: Judge, results: Results) -> Compare:
    """Runs each case on the base in a process of its own, unless its verdicts there are kept."""

    def compare(failing: Failing, coming: Sequence[Failing]) -> Compared:
        case, doubt = failing.case, ""
        ways.expect([later.case.setup for later in coming if not results.has(later.case)])

        def judged() -> Sequence[Verdict] | None:
            nonlocal doubt
            trace = steady(case, ways.run_fresh, ways.run_fresh)
            if trace.ended.how.took_place:
                return judge(case, trace)
            doubt = f"not run on {base}: {trouble(trace.ended)}"
            return None

        verdicts = results.of(case, judged)
        if verdicts is None:
            return Compared(doubt=doubt)
        there = {identity(verdict) for verdict in verdicts if verdict.status is Status.FAIL}
        brought = tuple(verdict for verdict in failing.failures if identity(verdict) not in there)
        return Compared(brought=brought, why=f"{base} fails in the same way")

    return compare


def with_known_issues(explain: Explain, target: Target) -> Compare:
    """explain: an experiment (repro/ledger/explain.py). In a published release nothing is changed that fails
    in the same place, so that one experiment for each kind of failure is enough."""

    def compare(failing: Failing, coming: Sequence[Failing]) -> Compared:
        explained = explain(failing.case, target, failing.failures, _with_others(failing, coming))
        if explained.doubt:
            return Compared(doubt=explained.doubt)
        left = {identity(verdict) for verdict in explained.left}
        brought = tuple(verdict for verdict in failing.failures if identity(verdict) in left)
        return Compared(brought=brought, why="; ".join(map(str, explained.issues)) or "known", general=True)

    return compare


def _with_others(failing: Failing, coming: Sequence[Failing]) -> list[Case]:
    """The cases that show a failure that none before them does."""
    seen, cases = shown(failing), []
    for later in coming:
        cases += [] if shown(later) <= seen else [later.case]
        seen |= shown(later)
    return cases
