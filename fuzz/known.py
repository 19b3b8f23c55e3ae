"""A failing case where known issues are given: an experiment shows whether they explain it, and a failure that they
leave is triaged on the target in which their bugs are mended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from fuzz.triage import Hooks, KnownIssues
from repro.cases.case import Case, Setup, Target
from repro.ledger.explain import Explainer
from repro.shrinking.first_divergence import FirstDivergence
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
    locate: Callable[[Worker, Case, Verdict], FirstDivergence],
    target: Target,
    hooks: Hooks,
    case: Case,
    failures: Sequence[Verdict],
) -> KnownIssues:
    """For Hooks.explain, with all but the last two parameters bound. On the target itself, a failure that is left would
    shrink towards the known issues."""
    explained = explainer.explain(case, target, failures)
    known = KnownIssues(issues=tuple(map(str, explained.issues)), left=explained.left)
    if not explained.left or explained.doubt or not explained.mended:
        return known
    worker = worker_on(explained.mended.target)
    mended = dataclasses.replace(
        hooks,
        run=worker.run,
        run_fresh=worker.run_fresh,
        expect=worker.expect,
        send=lambda case: None,
        locate=lambda case, verdict: locate(worker, case, verdict),
    )
    return dataclasses.replace(known, hooks=mended)
