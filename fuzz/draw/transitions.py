"""Coverage of a case: the pairs of buckets that followed each other, padded or not, on which kind of setup."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from repro.cases.case import Case, Setup, Step
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.campaign import Transition


def exercised(case: Case, replayed: Collection[int]) -> list[Transition]:
    """One transition for each step in `replayed`, in order.

    A step that was not replayed (the run ended, or did without the graph) leaves the graph's buffers as they were,
    so the next replay follows the last one that took place.
    """
    before = 0
    transitions = []
    for number, step in enumerate(case.steps):
        if number in replayed:
            transitions.append(transition(case.setup, before, step))
            before = transitions[-1].after
    return transitions


@lru_cache(maxsize=64)
def possible(setup: Setup) -> frozenset[Transition]:
    """All transitions that cases on this setup can make."""
    fewest = 0 if RUNNER_FACTS[setup.runner].idles else 1
    transitions = set()
    for busiest in filter(setup.replays, range(fewest, setup.max_bs + 1)):
        after = setup.bucket(busiest)
        # Beside a busier rank this one may have fewer requests.
        for count in range(fewest, busiest + 1) if setup.dp_attention else (busiest,):
            transitions |= {_transition(setup, before, after, count < after) for before in (0, *setup.capture_bs)}
    return frozenset(transitions)


def transition(setup: Setup, before: int, step: Step) -> Transition:
    """The transition that a step makes which is replayed behind this bucket, 0 for none."""
    after = setup.bucket(step.busiest)
    return _transition(setup, before, after, len(step.requests) < after)


def _transition(setup: Setup, before: int, after: int, padded: bool) -> Transition:
    return Transition(
        runner=setup.runner,
        backend=setup.backend,
        topk=setup.topk,
        num_steps=setup.num_steps,
        before=before,
        after=after,
        padded=padded,
    )
