"""States of replays: which are reached, which are possible, and that draws reach all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fuzz.draw.covering import FEATURES, MOST, ROWS, Row, rows
from fuzz.draw.profiles import DEFAULT, PROFILES
from fuzz.draw.rounds import SHORT_ROUNDS, round_setup, rounds
from fuzz.draw.states import OF_SETUPS, plainest, possible, possible_pairs, reached, smallest, states_of
from fuzz.draw.strategies import fullest
from repro.cases.case import Case, Request, Setup, Step, problems, setup_problems
from repro.cases.runner_facts import RUNNER_FACTS, TOY

SETUP = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)


def batch(*lengths: int) -> Step:
    return Step(requests=tuple(Request(slot=n, seq_len=length, data=n) for n, length in enumerate(lengths, start=1)))


def test_what_comes_between_counts_for_the_next_replay() -> None:
    case = Case(
        setup=SETUP, steps=(batch(3), batch(), replace(batch(9), mirrored=False), batch(1, 2, 3, 4, 5), batch(2))
    )
    assert reached(case, {0, 1}) == {"an idle batch"}
    assert reached(case, {2}) == {"no lengths on the host", "behind an idle batch"}
    assert reached(case, {4}) == {"behind a batch beyond all buckets"}
    assert reached(case, set()) == set()


def test_the_fullest_case_is_full() -> None:
    first = fullest(SETUP)
    assert "the largest bucket full of the longest requests" in reached(first, {0})
    assert "the largest bucket full of the longest requests" not in reached(first, {1})


PLACES = [
    (runner, backend)
    for runner, facts in RUNNER_FACTS.items()
    if facts.graph and runner != TOY
    for backend in facts.backends
]
SEEDS = range(1, 6)
# One in make test: the others show the same of other draws.
each_seed = pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == SEEDS[0] else pytest.mark.exhaustive) for seed in SEEDS]
)


def moments(runner: str, backend: str, seed: int, count: int) -> Iterator[frozenset[str]]:
    """The states of each step that is to be replayed, of so many cases of a campaign."""
    for case in itertools.islice(rounds(seed, runner, backend, PROFILES[DEFAULT].cases_per_setup), count):
        assert problems(case) == []
        for before, step in zip((None, *case.steps), case.steps, strict=False):
            if case.setup.replays(step.busiest, step.hidden):
                yield states_of(case.setup, before, step)


@pytest.mark.slow
@each_seed
@pytest.mark.parametrize(("runner", "backend"), PLACES)
def test_no_state_is_missing_after_150_cases(runner: str, backend: str, seed: int) -> None:
    assert set().union(*moments(runner, backend, seed, 150)) == possible(runner, backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("runner", "backend"), PLACES)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_pairs_of_states_are_met_after_1500_cases(runner: str, backend: str, seed: int) -> None:
    pairs: set[frozenset[str]] = set()
    for states in moments(runner, backend, seed, 1500):
        pairs |= {frozenset(pair) for pair in itertools.combinations(states, 2)}
    assert pairs == possible_pairs(runner, backend)


def test_what_cannot_be_together_is_asked_of_validity() -> None:
    pairs = {tuple(sorted(pair)) for pair in possible_pairs("draft", "triton")}
    assert ("a tree", "random drafts") not in pairs  # valid setups draw at random in chains
    assert ("a window", "deterministic inference") not in pairs  # is_drawn
    assert ("an idle batch", "the largest bucket full of the longest requests") not in pairs
    assert ("an idle batch", "no padding") in pairs  # beside a busy rank
    assert ("a window", "data-parallel attention") in pairs
    assert "a logit cap" not in possible("draft", "fa3")
    # Several draft steps have no window over flashinfer, one has.
    assert frozenset(("a window", "one draft step")) in possible_pairs("draft_extend", "flashinfer")
    assert "a window" not in possible("draft", "flashinfer")


@pytest.mark.parametrize(("runner", "backend"), PLACES)
def test_rows_of_a_cycle_hold_all_pairs_of_features(runner: str, backend: str) -> None:
    for seed in SEEDS:
        chosen = rows(runner, backend, f"{seed}")
        assert chosen == rows.__wrapped__(runner, backend, f"{seed}") and len(chosen) == ROWS
        met = {pair for row in chosen for pair in row.pairs}
        possible_of_two = {
            pair
            for kind in smallest(runner, backend)
            for count in (0, 1, 2)
            for features in itertools.combinations(FEATURES, count)
            if (row := Row(kind=kind, features=frozenset(features))).can_be()
            for pair in row.pairs
        }
        assert met == possible_of_two
        assert all(row.can_be() and len(row.features) <= MOST for row in chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "backend"), PLACES)
def test_a_setup_has_the_states_of_its_row(runner: str, backend: str) -> None:
    drawn = (round_setup(7, number, runner, backend)[1] for number in range(2 * ROWS))
    planned = rows(runner, backend, f"eagleeye 7 {runner} {backend} cycle 0")
    for row, setup in zip(planned, (setup for setup in drawn if not setup.family), strict=False):
        plain = plainest(setup)
        states = {state for state in OF_SETUPS if OF_SETUPS[state].holds(setup, None, plain)}
        assert states >= row.features & set(OF_SETUPS)
        assert ("a tree" in states) == (row.kind.topk > 1)
        assert setup.algorithm == row.kind.algorithm


def test_trees_in_windows_over_flashattention_have_pages_of_one_token() -> None:
    """sglang refuses others in every release: a round with them meets that pair of states, and judges nothing."""
    for seed in SEEDS:
        drawn = [round_setup(seed, number, "verify", "fa3")[1] for number in range(SHORT_ROUNDS)]
        trees = [setup for setup in drawn if setup.topk > 1 and setup.window]
        assert len(trees) > 1 and {setup.page_size for setup in trees} == {1}


def test_some_setups_have_as_many_splits_as_sglang_and_requests_that_fill_three() -> None:
    for seed in SEEDS:
        drawn = [round_setup(seed, number, "decode", "triton")[1] for number in range(SHORT_ROUNDS)]
        assert any(setup.kv_splits == 8 and setup.context_len > 2 * 32 for setup in drawn)


def test_another_runner_or_backend_has_other_rounds() -> None:
    swarms = {round_setup(5, 3, runner, backend)[0] for runner, backend in PLACES}
    assert len(swarms) == len(PLACES)


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "backend"), [("draft", "triton"), ("decode", "fa3"), ("verify", "fa3")])
def test_on_pages_one_row_in_four_is_near_the_end_of_one(runner: str, backend: str) -> None:
    near = rows_in_all = 0
    # In some 200 cases no more than seven setups of a tree have pages longer than it.
    for case in itertools.islice(rounds(3, runner, backend, 8), 600):
        width = case.setup.num_draft_tokens if RUNNER_FACTS[runner].speculative else 1
        lengths = [r.seq_len for step in case.steps for r in step.requests if case.setup.page_size > width]
        near += sum(-length % case.setup.page_size <= width for length in lengths)
        rows_in_all += len(lengths)
    assert rows_in_all > 400 and near > rows_in_all / 4


def test_now_and_then_a_model_is_broad() -> None:
    setups = [round_setup(5, number, "multi_layer", "triton")[1] for number in range(SHORT_ROUNDS)]
    broad = [setup for setup in setups if setup.hidden_size > 2048]
    assert len(broad) == 1 and broad[0].num_heads == 1
    assert setup_problems(broad[0]) == []


def test_without_a_graph_nothing_is_replayed() -> None:
    assert possible("kv_move", "triton") == frozenset()
