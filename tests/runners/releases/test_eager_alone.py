"""Eager passes that no graph stands beside, on real sglang: a batch beyond all buckets is held to what graphs are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool

pytestmark = pytest.mark.emulated(NEWEST)

DRAFT = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2), slots=4)
SETUPS = {
    "draft_extend": replace(DRAFT, runner="draft_extend"),
    "draft": DRAFT,
    "verify": replace(DRAFT, runner="verify"),
    "decode": replace(DRAFT, runner="decode", topk=1, num_steps=1, num_draft_tokens=2),
    "frozen_kv_mtp": replace(DRAFT, runner="frozen_kv_mtp", num_draft_tokens=6),
}
each_runner = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if number else ()) for number, name in enumerate(SETUPS)]
)
BEYOND = 1  # the step of more requests than a graph holds


def case(setup: Setup) -> Case:
    sizes = (2, 3, 1)
    steps = [[Request(slot=n + 1, seq_len=4 + 3 * n, data=10 * size + n) for n in range(size)] for size in sizes]
    example = Case(setup=setup, steps=tuple(Step(requests=tuple(requests)) for requests in steps))
    assert problems(example) == []
    return example


@pytest.fixture(scope="module")
def misled() -> Iterator[Pool]:
    with Pool(Target(NEWEST, "emulated"), session="tests.builders.beyond_session") as pool:
        yield pool


@pytest.mark.slow
@each_runner
def test_a_sound_one_passes_and_was_looked_at(name: str, newest: Pool) -> None:
    example = case(SETUPS[name])
    trace = newest.run(example)
    verdicts = judge_all(example, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    assert {"eager", "planned_eager", "metadata", "reads", "reference"} <= set(trace.paths(BEYOND))
    assert "graph" not in trace.paths(BEYOND)
    assert not trace.path(0, "reads") and trace.path(2, "reads"), "of a graph in the last step alone"


@pytest.mark.slow
@each_runner
def test_kv_slots_that_are_no_requests_are_seen(name: str, misled: Pool) -> None:
    example = case(SETUPS[name])
    trace = misled.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    failed = {verdict.oracle: verdict for verdict in judge_all(example, trace) if verdict.status is Status.FAIL}
    assert {"kv_reads", "kv_indices", "reference"} <= failed.keys()
    for oracle in ("kv_reads", "kv_indices", "reference"):
        cell = failed[oracle].cell
        assert cell is not None and cell.step == BEYOND
