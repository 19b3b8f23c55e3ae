"""The tables of runners, backends and releases: what one says, the places that it speaks of have."""

from __future__ import annotations

import pytest

from oracles import graph_equals_eager
from oracles.catalogue import ALL, COMPARED, name_of
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import ENGINES, Setup, engine_refuses, setup_problems
from repro.cases.facts_table import table
from repro.cases.release_list import ADAPTED, NEWEST, USES, has_runner
from repro.cases.releases import release_order
from repro.cases.rows.bounds import DTYPES
from repro.cases.runner_facts import ALL_ALGORITHMS, OF_OTHER_WORKERS, RUNNER_FACTS, TOY, RunnerFacts
from tests.builders.project import PROJECT

ORACLES = {name_of(judge) for judge in ALL}
DRIVEN = {name: facts for name, facts in RUNNER_FACTS.items() if name != TOY}

each_runner = pytest.mark.parametrize("runner", DRIVEN)


def setup_of(runner: str, backend: str) -> Setup:
    """The simplest setup that this runner can have."""
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    topk = 2 if facts.trees else 1
    steps = facts.num_steps_min if facts.speculative else 1
    return Setup(
        runner=runner,
        backend=backend,
        topk=topk,
        num_steps=steps,
        num_draft_tokens=steps + 1,
        capture_bs=(1,),
        slots=1,
        page_size=min(kernels.page_sizes, default=1),
        head_dim=kernels.drawn_head_dims[0],
        dtype=kernels.drawn_dtypes[0],
    )


@each_runner
def test_a_runner_has_what_its_row_names(runner: str) -> None:
    facts = RUNNER_FACTS[runner]
    assert set(facts.own_oracles) <= ORACLES
    assert set(facts.backends) <= BACKEND_FACTS.keys()
    assert set(facts.algorithms) <= {*ALL_ALGORITHMS, *OF_OTHER_WORKERS}
    assert facts.backend_since.keys() <= set(facts.backends)
    adapters = PROJECT / "runners" / "releases" / "adapters" / (facts.adapters or runner)
    assert adapters.is_dir() or adapters.with_suffix(".py").is_file()
    assert bool(facts.session) == (not facts.graph)
    if facts.session:
        assert (PROJECT / "runners" / "sessions" / f"{facts.session}.py").is_file()


@each_runner
def test_a_runner_without_a_graph_has_an_oracle_that_can_pass_it(runner: str) -> None:
    facts = RUNNER_FACTS[runner]
    assert set(facts.own_oracles) & COMPARED or facts.graph
    assert graph_equals_eager.ORACLE in COMPARED


@each_runner
def test_the_simplest_setup_of_each_backend_is_valid(runner: str) -> None:
    for backend in RUNNER_FACTS[runner].backends:
        assert setup_problems(setup_of(runner, backend)) == []


def limits(facts: RunnerFacts) -> list[str]:
    return [text for text in (facts.since, facts.until, facts.branches_since, *facts.backend_since.values()) if text]


@each_runner
def test_limits_are_releases_between_the_oldest_and_the_newest(runner: str) -> None:
    oldest, newest = release_order(ADAPTED[0]), release_order(ADAPTED[-1])
    assert all(oldest < release_order(limit) <= newest for limit in limits(RUNNER_FACTS[runner]))


def test_releases_rise_and_each_use_is_of_some() -> None:
    assert list(ADAPTED) == sorted(set(ADAPTED), key=release_order)
    for releases in USES.values():
        assert releases and [release for release in ADAPTED if release in releases] == list(releases)


@pytest.mark.parametrize("backend", BACKEND_FACTS)
def test_a_backend_draws_what_it_has_kernels_for(backend: str) -> None:
    facts = BACKEND_FACTS[backend]
    assert set(facts.drawn_dtypes) <= set(DTYPES) - set(facts.without_dtypes)
    assert facts.head_dims is None or set(facts.drawn_head_dims) <= set(facts.head_dims)
    assert set(facts.engines) <= set(ENGINES)


@pytest.mark.parametrize(
    ("runner", "backend", "dtype", "engine", "reason"),
    [
        ("draft", "triton", "bfloat16", "emulated", "Triton's interpreter has no bfloat16 arithmetic"),
        ("draft", "triton", "bfloat16", "cuda", ""),
        ("draft", "flashinfer", "bfloat16", "emulated", ""),
        ("cpu_decode", "intel_amx", "float32", "emulated", ""),
        ("cpu_decode", "intel_amx", "float32", "cuda", "the intel_amx backend runs on a CPU, not on the cuda engine"),
    ],
)
def test_an_engine_says_what_it_cannot_run(runner: str, backend: str, dtype: str, engine: str, reason: str) -> None:
    setup = Setup(
        runner=runner, backend=backend, topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(1,), slots=1, dtype=dtype
    )
    assert engine_refuses(setup, engine) == reason


def test_the_docs_have_the_table() -> None:
    assert table() in (PROJECT / "docs" / "runners.md").read_text()
    assert all(f"| `{runner}` |" in table() for runner in DRIVEN)


@pytest.mark.parametrize(
    ("runner", "having"),
    [
        ("draft", ADAPTED),
        ("draft_v1", ("0.5.10.post1", "0.5.11", "0.5.12.post1")),
        ("multi_layer", ADAPTED),
        ("frozen_kv_mtp", ADAPTED[2:]),
    ],
)
def test_a_runner_is_in_the_releases_from_its_first_to_its_last(runner: str, having: tuple[str, ...]) -> None:
    assert tuple(release for release in ADAPTED if has_runner(release, runner)) == having


def test_no_other_place_lists_the_releases() -> None:
    """In files that are not Python, where nothing else would notice a release that was forgotten."""
    for path in (PROJECT / "Makefile", *(PROJECT / ".github" / "workflows").glob("*.yml")):
        assert NEWEST not in path.read_text(), path
