"""Cases that are made to meet what is rare: on each setup every two states that its steps can be in come in turn, and
each bucket behind each other one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from fuzz.draw.states import OF_STEPS, STATES, Pair, brought, comes_alone, plainest, states_of, together
from fuzz.draw.transitions import exercised, possible, transition
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.campaign import Transition


class Meetings:
    """Changes cases of one setup so that they meet what those before them have not. Mutable: it knows the pairs of
    states and the transitions that are left. name: of the order in which pairs come."""

    def __init__(self, setup: Setup, name: str) -> None:
        has_graph = RUNNER_FACTS[setup.runner].graph
        self._setup = setup
        self._pairs = pairs(setup, name) if has_graph else ()
        self._pairs_left = self._pairs
        self._states = sorted({state for pair in self._pairs for state in pair})
        self._left = possible(setup) if has_graph else frozenset()
        self._number = 0

    def changed(self, case: Case) -> Case:
        """Batches are as large as a transition that is left wants them; and every second case ends in a pair of states
        that is left."""
        self._number += 1
        case = self._walked(case)
        if self._pairs and self._number % 2:
            case = ending(case, self._pairs_left, self._number)
        return self.met(case)

    def met(self, case: Case) -> Case:
        """The case, after it has been counted."""
        replayed = [n for n, step in enumerate(case.steps) if self._setup.replays(step.busiest, step.hidden)]
        self._left -= set(exercised(case, replayed))
        moments = ((case.steps[n - 1] if n else None, case.steps[n]) for n in replayed)
        states_met = [states_of(self._setup, *moment, self._states) for moment in moments]
        left = tuple(pair for pair in self._pairs_left if not any(states.issuperset(pair) for states in states_met))
        self._pairs_left = left or self._pairs
        return case

    def _walked(self, case: Case) -> Case:
        before, steps, left = 0, [], self._left
        for step in case.steps:
            step = _resized(self._setup, before, step, left)
            steps.append(step)
            if self._setup.replays(step.busiest, step.hidden):
                made = transition(self._setup, before, step)
                before, left = made.after, left - {made}
        return replace(case, steps=tuple(steps))


def _resized(setup: Setup, before: int, step: Step, left: Collection[Transition]) -> Step:
    """The step, as large as a transition that is left wants it. What is idle, or beyond all buckets, stays so."""
    if not left or not 0 < len(step.requests) <= setup.max_bs:
        return step
    sizes = (resized(setup, step, size) for size in (len(step.requests), *range(1, setup.max_bs + 1)))
    fitting = (sized for sized in sizes if setup.replays(sized.busiest, sized.hidden))
    return next((sized for sized in fitting if transition(setup, before, sized) in left), step)


def pairs(setup: Setup, name: str) -> tuple[Pair, ...]:
    """All pairs of states that a replay on this setup can be in besides the setup's own, each in the order in which
    they are brought about; those first that few setups have."""
    random = Random(name)
    able = [state for state in OF_STEPS if comes_alone(setup, state)]
    orders = (together(setup, *pair) for pair in itertools.combinations(able, 2))
    keyed = [(-sum(bool(OF_STEPS[state].fields) for state in pair), random.random(), pair) for pair in orders if pair]
    return tuple(pair for _, _, pair in sorted(keyed))


def ending(case: Case, pairs: Sequence[Pair], number: int) -> Case:
    """The case with the first of these pairs at its end, and mostly a third state besides, another one each time."""
    setup, pair, other = case.setup, pairs[0], pairs[number % len(pairs)][0]
    plain, drawn = plainest(setup), (case.steps[-2:][0], case.steps[-1])
    moments = (brought(setup, start, pair) for start in (STATES[other].bring(setup, *drawn), drawn, (plain, plain)))
    cases = (replace(case, steps=(*case.steps[:-2], *moment)) for moment in moments if moment)
    return next(case for case in cases if any(step.requests for step in case.steps))


def resized(setup: Setup, step: Step, size: int) -> Step:
    """The step with so many requests: the first ones, and new ones like them."""
    requests = step.requests[:size]
    used = {request.slot for request in requests}
    free = (slot for slot in range(1, setup.slots + 1) if slot not in used)
    new = (
        Request(slot=slot, seq_len=like.seq_len, data=slot)
        for slot, like in zip(free, itertools.cycle(step.requests), strict=False)
    )
    more = itertools.islice(new, size - len(requests))
    return replace(step, requests=(*requests, *more), elsewhere=min(step.elsewhere, size))
