"""A mended release is clean: with all that mends its known issues, no runner fails by what it does not fail by as
published. Nor does a failing case that the mends are to explain keep a failure of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from oracles.catalogue import judge_all
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Setup, Target, engine_refuses, problems
from repro.cases.families import GEMMA
from repro.cases.release_list import ADAPTED, NEWEST, has_runner
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.ledger import known
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.mended import mended
from tests.builders.cases import FULL, PADDED, case_of, setup_of, step

# What is compiled takes each session ten seconds, and its one mend is of releases before 0.5.13.
PAIRS = [
    (runner, backend)
    for runner, facts in RUNNER_FACTS.items()
    if runner != TOY and not facts.compiled
    for backend in facts.backends
]
ISSUES = known.load()
# Releases whose rounds have drafts that read the target's KV cache: before and after 0.5.18, which changed their batch.
FROZEN = "0.5.15.post1", NEWEST
# Releases before and after 0.5.16, which draws drafts by another function, and the newest.
RANDOM = "0.5.15.post1", "0.5.16", NEWEST


# Each release with all pairs that it has.
RUNS = [
    pytest.param(
        release,
        pair,
        id=f"{release}-{'/'.join(pair)}",
        marks=pytest.mark.emulated(release),
    )
    for release in ADAPTED
    for pair in PAIRS
    if has_runner(release, *pair)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Workers on a release, as published and mended. The third opinion is asked in every step."""

    published: Pool
    mended: Pool


@pytest.fixture(scope="module")
def pools(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    target = Target(release, "emulated")
    names = dict.fromkeys(name for issue in holding(release) for name in issue.mended_by)
    overlay = mended(target, tuple(names))
    assert overlay, f"nothing mends {release}"
    log, every_step = tmp_path_factory.mktemp("worker") / "log", {"EAGLEEYE_REFERENCE": "1"}
    with ExitStack() as open_pools:
        published, other = (
            open_pools.enter_context(Pool(each, log=log, variables=every_step)) for each in (target, overlay.target)
        )
        yield Pools(published=published, mended=other)


def holding(release: str) -> list[known.Issue]:
    return [issue for issue in ISSUES if issue.holds_on(release, "emulated")]


def rare(setup: Setup) -> Setup:
    """On pages, with as many branches, windows and drafts behind the context as the runner and its kernels take."""
    facts, kernels = RUNNER_FACTS[setup.runner], BACKEND_FACTS[setup.backend]
    windowed = facts.windowed == "target" or (facts.windowed == "draft" and kernels.drafts_in_windows)
    # A deep tree, and a window that is shorter than its branches. FlashAttention takes no trees in windows on pages.
    tree: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9} if setup.topk > 1 else {}
    page_size = 4 if 4 in (kernels.page_sizes or (4,)) else kernels.page_sizes[0]
    window: dict[str, Any] = {"window": 1, "swa": facts.windowed == "target"} if windowed else {}
    paged = not (window and setup.backend == "fa3")
    return replace(setup, page_size=page_size if paged else 1, **tree, **window)


def cases(runner: str, backend: str) -> tuple[Case, ...]:
    """Cases of a padded batch behind a full one, in a small setup and in one with all that is rare."""
    setup = setup_of(runner, backend)
    return tuple(case_of(each, FULL, PADDED) for each in (setup, rare(setup)))


def failed(pool: Pool, case: Case) -> dict[tuple[str, str], Verdict]:
    """The failures by oracle and where. It fails the test if the case could not be run."""
    trace = pool.run(case)
    assert trace.ended.how is not Termination.ERROR, trace.ended
    return {(v.oracle, v.where): v for v in judge_all(case, trace) if v.status is Status.FAIL}


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_the_cases_are_some_that_can_be_run(pair: tuple[str, str]) -> None:
    for case in cases(*pair):
        assert problems(case) == [], case.setup
        assert not engine_refuses(case.setup, "emulated")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("release", "pair"), RUNS, scope="module")
def test_mends_break_no_runner(release: str, pair: tuple[str, str], pools: Pools) -> None:
    for case in cases(*pair):
        assert not new(release, case, pools), case.setup


@pytest.mark.parametrize(
    "release", [pytest.param(release, marks=pytest.mark.emulated(release)) for release in FROZEN], scope="module"
)
@pytest.mark.exhaustive
def test_mends_break_no_draft_that_reads_the_targets_cache(release: str, pools: Pools) -> None:
    # Its window is one token less than the target's, which has itself.
    setup = replace(setup_of("round", "triton"), family=GEMMA, window=1, swa=True, overlap=False, returns_hidden=True)
    case = case_of(setup, FULL, PADDED)
    assert problems(case) == []
    assert not new(release, case, pools)


@pytest.mark.parametrize(
    "release", [pytest.param(release, marks=pytest.mark.emulated(release)) for release in RANDOM], scope="module"
)
@pytest.mark.exhaustive
def test_mends_break_no_draft_that_is_drawn_at_random(release: str, pools: Pools) -> None:
    """The mend of rounds must not reach into the graph, whose capture has no request's own values."""
    setup = replace(setup_of("draft", topk=1), rejection=True)
    case = Case(setup=setup, steps=tuple(step(*((*request, 0, True) for request in batch)) for batch in (FULL, PADDED)))
    assert problems(case) == []
    assert not new(release, case, pools)


def new(release: str, case: Case, pools: Pools) -> set[Verdict]:
    """The failures that only the mends bring. What nothing mends may come out where what hid it is mended."""
    unmended = [issue for issue in holding(release) if not issue.mended_by]
    left = failed(pools.mended, case)
    published = failed(pools.published, case) if left else {}
    return {v for key, v in left.items() if key not in published and not any(i.names(case.setup, v) for i in unmended)}
