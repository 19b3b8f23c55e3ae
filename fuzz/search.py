"""A campaign for one failure: it ends once the oracle that is asked for has failed, and has failed again on its own."""

from __future__ import annotations

import dataclasses
import itertools

from fuzz.campaign import campaign
from fuzz.draw import rounds
from fuzz.settle import Means
from fuzz.tally import Plan
from repro.case import Case, Target
from repro.finding import Finding
from repro.fixes import Proof
from repro.record import Campaign

# What is spent on a failure once it is found: enough to be sure of it, and to leave a case that can be read.
CONFIRM_TRIES, SHRINK_RUNS, SHRINK_SECONDS = 3, 20, 5.0
CASES_PER_SETUP = 16


def search(target: Target, proof: Proof, means: Means, *, seed: int, seconds: float) -> Campaign:
    """Look for a failure of the proof's oracle for so many seconds; failures of others are kept on the way.

    KeyboardInterrupt is raised again: half a search is no answer.
    """
    seen: set[str] = set()

    def keep(finding: Finding) -> str:
        if finding.failed:
            seen.add(finding.verdict.oracle)
        return means.keep(finding)

    def is_wanted(case: Case) -> bool:
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
    cases = itertools.takewhile(is_wanted, rounds(seed, proof.runner, proof.backend, CASES_PER_SETUP))
    done = campaign(plan, cases, dataclasses.replace(means, keep=keep))
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return done
