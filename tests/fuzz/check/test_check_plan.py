"""The plan of python -m fuzz check: its items, and the stored seeds that it is made of."""

from __future__ import annotations

from itertools import groupby

import pytest

from fuzz.check.command import stored_seeds
from fuzz.check.plan import BUDGET, Plan, directed, pairs, plan, shows, telling
from repro.cases.case import problems
from repro.cases.codec import Seed
from repro.cases.runner_facts import RUNNER_FACTS
from repro.upstream.fixes import SEEDS
from runners.processes.served import kind


@pytest.fixture(scope="module")
def whole() -> Plan:
    return plan(stored_seeds(SEEDS))


def test_the_plan_has_a_plain_setup_of_every_pair_and_every_seed(whole: Plan) -> None:
    plain = [f"{runner}/{backend} plain" for runner, backend in pairs()]
    assert {*plain} <= {item.name for item in whole.items}
    # However little room there is.
    assert [item.name for item in plan((), budget=0.0).items] == plain
    compiled = {runner for runner, facts in RUNNER_FACTS.items() if facts.compiled}
    stored = {name for name, seed in stored_seeds(SEEDS) if seed.case.setup.runner not in compiled}
    assert stored <= {item.name for item in whole.items}


def test_the_plan_shows_every_option_with_every_runner_and_every_backend_that_have_it(whole: Plan) -> None:
    possible = [shows(item) for pair in pairs() for item in directed(*pair)[1]]
    shown = set().union(*map(shows, whole.items))
    assert set().union(*possible) <= shown
    for option in ("dp_attention", "adaptive=5", "rejection", "mrope", "page_size=4", "window=2", "family=qwen3_next"):
        assert ("draft", option) in shown, option
    for part in ("decode", "verify", "triton", "flashinfer", "fa3"):
        assert {(part, "swa"), (part, "dp_attention")} <= shown, part
    busier = [case for item in whole.items if item.setup.dp_attention for case in item.cases]
    assert any(step.elsewhere > len(step.requests) for case in busier for step in case.steps)


def test_a_setup_that_shows_nothing_new_comes_after_those_that_do() -> None:
    _, kinds, _ = directed("draft", "triton")
    ordered = list(telling([*reversed(kinds), *kinds]))
    assert ordered[: len(kinds)] != kinds[::-1] and sorted(map(id, ordered[: len(kinds)])) == sorted(map(id, kinds))
    assert ordered[len(kinds) :] == kinds


def test_setups_that_a_process_may_serve_one_after_the_other_are_neighbours(whole: Plan) -> None:
    kinds = [kind(item.setup) for item in whole.items]
    groups = [group for group, _ in groupby(kinds)]
    assert len(groups) == len(set(groups)) < len(kinds) / 2


def test_the_plan_is_the_same_every_time_and_names_what_its_budget_leaves_out(whole: Plan) -> None:
    assert plan(stored_seeds(SEEDS)) == whole
    assert sum(item.cost for item in whole.items) <= BUDGET
    names = [item.name for item in (*whole.items, *whole.left_out)]
    assert len(whole.left_out) > 0 and len(set(names)) == len(names)
    everything = plan(stored_seeds(SEEDS), budget=10 * BUDGET)
    assert not everything.left_out and {item.name for item in everything.items} == set(names)
    assert all(problems(case) == [] for item in everything.items for case in item.cases)


def test_seeds_are_read_with_their_names() -> None:
    seeds = dict(stored_seeds(SEEDS))
    assert "pr23037-stale-padding.json" in seeds
    assert all(isinstance(seed, Seed) for seed in seeds.values())
