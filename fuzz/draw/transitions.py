"""What a case exercised: which bucket followed which, padded or not, on which kind of setup; and what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from repro.cases.case import Case, Setup
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
            after = case.setup.bucket(step.busiest)
            transitions.append(_transition(case.setup, before, after, len(step.requests) < after))
            before = after
    return transitions


def possible(setup: Setup) -> frozenset[Transition]:
    """All transitions that cases on this setup can make."""
    transitions = set()
    for below, after in itertools.pairwise((0, *setup.capture_bs)):
        # A bucket just above the next smaller one is always full when it is used.
        is_padded = (after - below > 1 and setup.padded) or setup.dp_attention
        for padded in (False, True) if is_padded else (False,):
            transitions |= {_transition(setup, before, after, padded) for before in (0, *setup.capture_bs)}
    return frozenset(transitions)


def missing(setup: Setup, covered: Iterable[Transition]) -> list[Transition]:
    """The transitions of this setup that have not been made, in order."""
    return sorted(possible(setup) - frozenset(covered))


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
