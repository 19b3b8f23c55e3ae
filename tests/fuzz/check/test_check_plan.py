"""The plan of python -m fuzz check: its items, and the stored seeds that it is made of."""

from __future__ import annotations

import pytest

from fuzz.check.command import stored_seeds
from fuzz.check.plan import BUDGET, Plan, pairs, plan
from repro.cases.case import problems
from repro.cases.codec import Seed
from repro.cases.runner_facts import RUNNER_FACTS
from repro.upstream.fixes import SEEDS

DRAFT_BACKENDS = RUNNER_FACTS["draft"].backends


@pytest.fixture(scope="module")
def whole() -> Plan:
    return plan(stored_seeds(SEEDS))


def test_the_plan_begins_with_every_pair_and_has_every_seed_and_every_kind_of_setup(whole: Plan) -> None:
    items = whole.items
    assert [item.pair for item in items[: len(pairs())]] == list(pairs())
    compiled = {runner for runner, facts in RUNNER_FACTS.items() if facts.compiled}
    stored = {name for name, seed in stored_seeds(SEEDS) if seed.case.setup.runner not in compiled}
    assert stored <= {item.name for item in items}
    setups = [item.setup for item in items]
    for backend in DRAFT_BACKENDS:
        drafts = [setup for setup in setups if (setup.runner, setup.backend) == ("draft", backend)]
        assert any(setup.dp_attention for setup in drafts) and any(setup.adaptive for setup in drafts)
        assert any(setup.rejection for setup in drafts) and any(setup.mrope for setup in drafts)
        assert any(1 < setup.page_size < setup.context_len for setup in drafts)
    for wanted in ("window", "swa", "kv_dtype", "deterministic", "logit_cap", "overhang"):
        assert any(getattr(setup, wanted) for setup in setups), wanted
    busier = [case for item in items if item.setup.dp_attention for case in item.cases]
    assert any(step.elsewhere > len(step.requests) for case in busier for step in case.steps)


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
