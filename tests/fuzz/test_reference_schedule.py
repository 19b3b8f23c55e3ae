"""The steps of a campaign's cases that ask the reference, and that whoever runs a case again asks it in all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fuzz import reference_schedule
from fuzz.__main__ import main
from fuzz.draw.rounds import rounds
from fuzz.reference_schedule import ReferenceSchedule, met_in, share_of
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.drawn import is_drawn
from repro.traces.trace import Trace
from runners.processes.pool import Pool

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=5, page_size=4)


def case(*batches: tuple[int, ...], data: int = 0) -> Case:
    """A step for each, of requests so long."""
    steps = [[Request(slot=n + 1, seq_len=s, data=data) for n, s in enumerate(batch)] for batch in batches]
    return Case(setup=SETUP, steps=tuple(Step(requests=tuple(step)) for step in steps))


def novel(schedule: ReferenceSchedule, drawn: Case) -> set[int]:
    """The steps that are asked and not drawn by lot."""
    schedule.draw([drawn])
    return {n for n in schedule.steps(drawn) or () if drawn.steps[n].requests}


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> ReferenceSchedule:
    """Without the sample."""
    monkeypatch.setattr(reference_schedule, "is_drawn", lambda case, step, each: False)
    return ReferenceSchedule("emulated")


def test_the_first_case_is_asked_whole_and_others_where_states_meet(schedule: ReferenceSchedule) -> None:
    assert novel(schedule, case((5, 6), (5, 6), ())) == {0, 1}
    assert novel(schedule, case((9, 10), (9, 10), (9, 10, 11), (5, 6), data=1)) == {2}
    assert novel(schedule, case((9, 10), (8, 6), (8, 6), data=2)) == {1}, "a page begins"
    assert novel(schedule, case((8, 10), (9, 10, 11), (8, 10, 11), data=3)) == {2}, "and in another bucket"
    other = replace(case((5, 6)), setup=replace(SETUP, topk=1, num_draft_tokens=4))
    assert novel(schedule, other) == {0}
    assert novel(ReferenceSchedule("emulated"), case((9, 10), data=1)) == {0}, "nothing is known of other schedules"


def test_greedy_requests_beside_others_are_new(schedule: ReferenceSchedule) -> None:
    setup = replace(SETUP, topk=1, page_size=1, rejection=True)
    plain, other = (replace(case((5, 6), data=data), setup=setup) for data in (0, 1))
    first, second = other.steps[0].requests
    mixed = replace(other, steps=(replace(other.steps[0], requests=(replace(first, greedy=True), second)),))
    assert [novel(schedule, each) for each in (plain, other, mixed)] == [{0}, set(), {0}]


def test_a_case_is_asked_alike_until_it_has_been_run(schedule: ReferenceSchedule) -> None:
    first, second = case((5, 6)), case((9, 10), (9, 10, 11), data=1)
    schedule.draw([first, second])
    steps = schedule.steps(second)
    schedule.draw([second])
    assert schedule.steps(second) == steps == (1,)
    schedule.end(second)
    assert schedule.steps(second) is None, "whoever runs it again asks in all steps"


@pytest.mark.parametrize(("engine", "backend"), [("cuda", "triton"), ("emulated", "triton"), ("emulated", "fa3")])
def test_counts_bound_what_it_costs(engine: str, backend: str) -> None:
    schedule, setups = ReferenceSchedule(engine), dict[Setup, list[int]]()
    for drawn in islice(rounds(5, "draft", backend, 16), 96):
        schedule.draw([drawn])
        setups.setdefault(drawn.setup, []).append(len(schedule.steps(drawn) or ()))
    for setup, (first, *others) in setups.items():
        assert first > 0
        assert sum(others) <= share_of(engine, setup).novel + 10, "a few are drawn by lot"


def test_what_meets_in_a_step() -> None:
    names = {feature for feature, other in met_in(case((5, 6), (8,)), 1) if feature == other}
    assert names == {"bucket 2", "padded", "a page begins", "pages of several tokens", "a tree"}
    drawn = [is_drawn("a digest", step, 32) for step in range(6400)]
    assert drawn == [is_drawn("a digest", step, 32) for step in range(6400)]
    assert 0.5 < sum(drawn) * 32 / 6400 < 1.5
    assert not any(is_drawn("a digest", step, 0) for step in range(100))


def asked_in(trace: Trace) -> set[int]:
    return {seen.step for seen in trace.seen if seen.path == "reference"}


def test_sessions_ask_where_they_are_told_to() -> None:
    setup = replace(SETUP, runner="toy", page_size=1)
    cases = [replace(case((5, 6), (7, 8), (9,), data=n), setup=setup) for n in range(4)]
    steps_by_case = {cases[0]: (1,), cases[1]: (), cases[2]: (0, 2)}
    with Pool(Target("clean", "toy"), asks=steps_by_case.get) as pool:
        pool.send(cases[1:])
        assert [asked_in(pool.run(run_case)) for run_case in cases] == [{1}, set(), {0, 2}, {0, 1, 2}]


@pytest.mark.slow
def test_what_only_the_reference_shows_is_found_and_confirmed(tmp_path: Path) -> None:
    record, out = tmp_path / "record.json", str(tmp_path / "out")
    assert main(["run", "--target", "wrong_alike/toy", "--cases", "8", "--out", out, "--json", str(record)]) == 1
    (finding,) = json.loads(record.read_text())["findings"]
    assert (finding["oracle"], finding["where"]) == ("reference", "wrong values")
    assert finding["failed"] == finding["tried"] == 5
    assert len(finding["case"]["steps"]) == 1
