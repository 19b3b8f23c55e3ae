"""Caches that go by a key on the host: a right one changes nothing, and wrong ones fall (tests/builders/caches.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oracles.catalogue import judge_all
from repro.cases.case import Case, Target
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from tests.builders.cached import change
from tests.builders.caches import CACHES, RELEASE, RIGHT, Cache
from tests.builders.cases import Batch, case_of, setup_of

pytestmark = pytest.mark.emulated(RELEASE)
FIRST: Batch = ((1, 9, 1), (2, 17, 2), (3, 5, 3))
# The same lengths on other slots; the same slots with lengths that changed places.
OTHER_SLOTS: Batch = ((4, 9, 1), (5, 17, 2), (6, 5, 3))
OTHER_LENGTHS: Batch = ((1, 17, 1), (2, 5, 2), (3, 9, 3))
NAMED = {cache.name: cache for cache in CACHES}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    target = Target(RELEASE, "emulated")
    with Pool(target, timeout_s=120, session="tests.builders.cached_session") as pool:
        yield pool


def failing(pool: Pool, case: Case) -> set[str]:
    trace = pool.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    return {verdict.oracle for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}


def with_key(cache: Cache, key: str) -> dict[str, object]:
    return change(dict(cache.variants())[key])


@pytest.mark.parametrize("name", ["draft plan", "decode page table"])
def test_a_right_cache_passes_and_wrong_ones_fail(pool: Pool, name: str) -> None:
    cache = NAMED[name]
    setup = setup_of(cache.runner, cache.backend, capture_bs=(4,))
    slots, lengths = case_of(setup, FIRST, OTHER_SLOTS), case_of(setup, FIRST, OTHER_LENGTHS)
    again = case_of(setup, FIRST, OTHER_SLOTS, FIRST, FIRST)
    pool.change(with_key(cache, RIGHT))
    assert [failing(pool, case) for case in (slots, lengths, again)] == [set(), set(), set()]
    pool.change(with_key(cache, "lengths"))
    assert "kv_indices" in failing(pool, slots) and not failing(pool, lengths)
