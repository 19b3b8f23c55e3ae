"""A campaign for one failure: it ends once the wanted oracle has failed, and has failed again in a fresh process."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.draw.rounds import rounds
from fuzz.stats import Plan
from fuzz.triage import Hooks
from repro.cases.case import Case, Target
from repro.ledger.explain import Explained
from repro.traces.campaign import Campaign
from repro.traces.finding import Finding, Verdict
from repro.upstream.fixes import Proof

# What is spent on a failure once it is found: enough to be sure of it, and to leave a case that can be read.
CONFIRM_TRIES, SHRINK_RUNS, SHRINK_SECONDS = 3, 20, 5.0
# Few: a setup soon shows whether it can fail at all (one without gaps between its buckets pads nothing).
CASES_PER_SETUP = 6


def search(target: Target, proof: Proof, hooks: Hooks, *, seed: int, seconds: float) -> Campaign:
    """Look for a failure of the proof's oracle for so many seconds. Failures of others on the way are passed by: a
    release that lacks one fix lacks others, and triage of each would take longer than the search.

    KeyboardInterrupt is raised again: half a search is no answer.
    """
    seen: set[str] = set()

    def explain(case: Case, failures: Sequence[Verdict]) -> Explained:
        return Explained(left=tuple(verdict for verdict in failures if verdict.oracle == proof.oracle))

    def claim(fingerprint: str) -> bool:
        return proof.oracle not in seen

    def keep(finding: Finding) -> str:
        if finding.failed:
            seen.add(finding.verdict.oracle)
        return hooks.keep(finding)

    def goes_on(case: Case) -> bool:
        return proof.oracle not in seen

    plan = Plan(
        target=target,
        runner=proof.runner,
        backend=proof.backend,
        seed=seed,
        seconds=seconds,
        confirm_tries=CONFIRM_TRIES,
        shrink_runs=SHRINK_RUNS,
        shrink_seconds=SHRINK_SECONDS,
    )
    drawn = rounds(seed, proof.runner, proof.backend, CASES_PER_SETUP)
    fitting = (case for case in drawn if case.setup.topk == 1 or not proof.chains)
    cases = itertools.takewhile(goes_on, fitting)
    done = campaign(plan, CaseStream(cases), dataclasses.replace(hooks, keep=keep, explain=explain, claim=claim))
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return done
