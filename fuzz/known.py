"""What a campaign does with a failing case where known issues are asked about: they are put to the test, and what they
leave is settled where they are mended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from fuzz.triage import Hooks, KnownIssues
from repro.cases.case import Case, Setup, Target
from repro.ledger.explain import Explainer
from repro.shrinking.first_divergence import Blame
from repro.traces.finding import Verdict
from repro.traces.trace import Trace


class Worker(Protocol):
    """Runs cases on one target."""

    def run(self, case: Case) -> Trace: ...

    def run_fresh(self, case: Case) -> Trace: ...

    def expect(self, setups: Sequence[Setup]) -> None: ...


def explain(
    explainer: Explainer,
    worker_on: Callable[[Target], Worker],
    blame: Callable[[Worker, Case, Verdict], Blame],
    target: Target,
    hooks: Hooks,
    case: Case,
    failures: Sequence[Verdict],
) -> KnownIssues:
    """For Hooks.explain, all but the last two bound. What is left would elsewhere shrink towards the known issues."""
    said = explainer.explain(case, target, failures)
    known = KnownIssues(issues=tuple(map(str, said.issues)), left=said.left)
    if not said.left or said.doubt or not said.mended:
        return known
    worker = worker_on(said.mended.target)
    there = dataclasses.replace(
        hooks,
        run=worker.run,
        run_fresh=worker.run_fresh,
        expect=worker.expect,
        send=lambda case: None,
        blame=lambda case, verdict: blame(worker, case, verdict),
    )
    return dataclasses.replace(known, hooks=there)
