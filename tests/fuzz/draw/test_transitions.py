"""Transitions: what a case exercised, what is possible, what is missing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fuzz.draw.meetings import Meetings
from fuzz.draw.rounds import different, rounds
from fuzz.draw.strategies import cases
from fuzz.draw.transitions import exercised, possible
from repro.cases.case import Case, Request, Setup, Step
from repro.traces.campaign import Transition

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)


def case(*sizes: int) -> Case:
    batches = [tuple(Request(slot=n, seq_len=5, data=n) for n in range(1, size + 1)) for size in sizes]
    return Case(setup=SETUP, steps=tuple(Step(requests=batch) for batch in batches))


def moves(transitions: list[Transition]) -> list[tuple[int, int, bool]]:
    return [(transition.before, transition.after, transition.padded) for transition in transitions]


def test_each_replay_is_a_transition() -> None:
    transitions = exercised(case(4, 3, 1, 2), {0, 1, 2, 3})
    assert moves(transitions) == [(0, 4, False), (4, 4, True), (4, 1, False), (1, 2, False)]
    assert {
        (transition.runner, transition.backend, transition.topk, transition.num_steps) for transition in transitions
    } == {("draft", "triton", 2, 3)}


def test_a_step_without_a_replay_is_left_out() -> None:
    assert moves(exercised(case(4, 3, 1, 2), {0, 3})) == [(0, 4, False), (4, 2, False)]
    assert exercised(case(4, 3), set()) == []


def test_possible_transitions() -> None:
    # Only 4 can be padded by requests, as only there a size was left out below, and 1 where a batch is idle; each can
    # follow the start and each bucket.
    full = {(b, a, False) for b in (0, 1, 2, 4) for a in (1, 2, 4)}
    padded = {size: {(b, size, True) for b in (0, 1, 2, 4)} for size in (1, 2, 4)}
    assert set(moves(list(possible(SETUP)))) == full | padded[1] | padded[4]
    without = replace(SETUP, runner="frozen_kv_mtp")
    assert set(moves(list(possible(without)))) == full | padded[4]
    assert set(moves(list(possible(replace(SETUP, padded=False))))) == full
    ranked = full | padded[1] | padded[2] | padded[4]
    assert set(moves(list(possible(replace(SETUP, dp_attention=True))))) == ranked


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["draft", "decode", "verify", "frozen_kv_mtp"])
def test_no_case_makes_an_impossible_transition(runner: str) -> None:
    for case in itertools.islice(rounds(3, runner, "triton", 6), 150):
        replayed = [n for n, step in enumerate(case.steps) if case.setup.replays(step.busiest, step.hidden)]
        assert possible(case.setup) >= set(exercised(case, replayed))


def test_the_strategies_reach_every_transition() -> None:
    drawn_cases = different("reach", cases(SETUP), 150, changed=Meetings(SETUP, "reach").changed)
    # What no bucket holds is run without a graph.
    covered = {
        transition
        for drawn in drawn_cases
        for transition in exercised(
            drawn, [n for n, step in enumerate(drawn.steps) if len(step.requests) <= SETUP.max_bs]
        )
    }
    assert possible(SETUP) <= covered
