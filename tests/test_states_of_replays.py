"""States of replays: which are reached, which are possible, and that draws reach all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.draw.rounds import different, examples
from fuzz.draw.states import possible, reached
from fuzz.draw.strategies import cases, fullest, setups
from fuzz.draw.swarm import EVERYTHING
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.runner_facts import RUNNER_FACTS

SETUP = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)


def batch(*lengths: int) -> Step:
    return Step(requests=tuple(Request(slot=n, seq_len=length, data=n) for n, length in enumerate(lengths, start=1)))


def test_what_comes_between_counts_for_the_next_replay() -> None:
    case = Case(
        setup=SETUP, steps=(batch(3), batch(), replace(batch(9), mirrored=False), batch(1, 2, 3, 4, 5), batch(2))
    )
    assert reached(case, {0, 1}) == {"one draft step", "an idle batch"}
    assert reached(case, {2}) == {"one draft step", "no lengths on the host", "behind an idle batch"}
    assert reached(case, {4}) == {"one draft step", "behind a batch beyond all buckets"}
    assert reached(case, set()) == set()


def test_the_fullest_case_is_full() -> None:
    first = fullest(SETUP)
    assert "the largest bucket full of the longest requests" in reached(first, {0})
    assert "the largest bucket full of the longest requests" not in reached(first, {1})


PLACES = [(runner, backend) for runner, facts in RUNNER_FACTS.items() if facts.graph for backend in facts.backends]


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "backend"), PLACES)
def test_draws_reach_every_state_that_is_possible(runner: str, backend: str) -> None:
    found: set[str] = set()
    for number in range(16):
        if found >= possible(runner, backend):
            break
        swarm = replace(
            EVERYTHING,
            unpadded=number % 2 == 0,
            unmirrored=number % 4 == 1,
            rejecting=number % 4 == 3,
            adapting=number % 4 == 2,
            quantising=number % 3 == 0,
            ranked=number % 5 > 2,
        )
        setup = examples(setups(runner, backend, swarm))(f"states {number}")
        for case in (fullest(setup), *different(f"states {number}", cases(setup, swarm), 8)):
            found |= reached(case, [n for n, step in enumerate(case.steps) if setup.replays(step.busiest)])
    assert possible(runner, backend) - found == set()


def test_without_a_graph_nothing_is_replayed() -> None:
    assert possible("kv_move", "triton") == frozenset()
