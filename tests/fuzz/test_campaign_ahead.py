"""The announcements of a campaign: the next case, the setups to come, and what is on disk meanwhile."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fuzz.campaign import DRAWN_AHEAD, DRAWN_AHEAD_OF_MANY, MANY_CASES, STALE_CASES, campaign
from fuzz.case_source import CaseStream
from fuzz.draw.rounds import (
    CASES_ANNOUNCED,
    EVERY,
    ROUNDS_ANNOUNCED,
    SHORT_ROUNDS,
    round_cases,
    rounds,
)
from fuzz.in_flight import InFlight
from fuzz.triage import Hooks
from repro.cases import codec
from repro.cases.case import Case, Setup
from repro.traces.trace import End, Termination, Trace
from tests.builders.campaign_world import FAIL, PLAN, World, drawn, trace_of

# Behind the short ones.
LONG = EVERY[SHORT_ROUNDS:]


@dataclass
class Ahead(World):
    """Remembers what was said to come, and checks that it did."""

    sent: list[list[Case]] = field(default_factory=list)
    expected: list[tuple[Setup, ...]] = field(default_factory=list)
    foreseen: list[list[list[Case]]] = field(default_factory=list)

    def hooks(self) -> Hooks:
        return replace(
            super().hooks(),
            send=lambda cases: self.sent.append(list(cases)),
            expect=lambda setups: self.expected.append(tuple(setups)),
            foresee=lambda rounds: self.foreseen.append([list(cases) for cases in rounds]),
        )


def test_what_is_sent_ahead_are_the_next_cases_on_a_setup_that_was_built() -> None:
    world = Ahead(fails=lambda case: [])
    world.go()
    expected = [
        [case for case in world.ran[number + 1 : number + 1 + DRAWN_AHEAD] if case.setup == setup]
        for number, setup in enumerate(case.setup for case in world.ran)
        if number and world.ran[number - 1].setup == setup
    ]
    assert world.sent == expected
    assert len(expected) == 40 - 5


def test_more_are_sent_ahead_of_a_setup_that_has_had_many_cases() -> None:
    world = Ahead(fails=lambda case: [])
    source = rounds(3, "toy", "triton", MANY_CASES + 10, LONG)
    campaign(replace(PLAN, cases=MANY_CASES + 10), CaseStream(source, source.coming), world.hooks())
    lengths = [len(cases) for cases in world.sent]
    assert set(lengths[: MANY_CASES - 1]) == {DRAWN_AHEAD} and max(lengths[MANY_CASES:]) == DRAWN_AHEAD_OF_MANY


def test_sending_ahead_changes_no_result() -> None:
    """With failures that are triaged in between, setups that are refused, and limits."""

    def ends(case: Case) -> Trace:
        return trace_of(case, Termination.UNSUPPORTED, "no") if case.setup.topk % 2 else trace_of(case)

    for plan in (
        PLAN,
        replace(PLAN, cases=3),
        replace(PLAN, cases=None, seconds=2.0),
        replace(PLAN, stop_at_first=True),
    ):
        plain, ahead = World(ends=ends), Ahead(ends=ends)
        records = [replace(world.go(plan), started="", ended="") for world in (plain, ahead)]
        assert records[0] == records[1]
        assert (ahead.ran, ahead.log) == (plain.ran, plain.log)


def test_the_first_cases_of_the_next_rounds_are_foreseen_and_again_after_triage() -> None:
    numbers = LONG[: 4 + ROUNDS_ANNOUNCED]
    each = [list(itertools.islice(round_cases(5, number, "toy", "triton", 20), 20)) for number in numbers]
    cases = rounds(5, "toy", "triton", 20, LONG)
    world = Ahead(fails=lambda case: [], coming=cases.coming)
    world.go(replace(PLAN, cases=60), cases)
    first = [some[:CASES_ANNOUNCED] for some in each]
    assert world.foreseen == [first[n : n + ROUNDS_ANNOUNCED] for n in (1, 2, 3)]
    assert world.ran == [case for some in each[:3] for case in some]
    failing = Ahead(fails=lambda case: [FAIL], coming=lambda: first[:1])
    failing.go(replace(PLAN, cases=1))
    assert failing.foreseen == [first[:1]] * 2
    smallest = failing.kept[-1].case.setup
    assert (smallest,) * PLAN.confirm_tries in failing.expected


def test_a_round_that_was_drawn_of_is_still_foreseen_after_triage() -> None:
    """The last case of the first round fails, when the first of the second has been drawn."""
    cases, plan = rounds(5, "toy", "triton", 3), replace(PLAN, cases=4)
    third, fourth = list(itertools.islice(rounds(5, "toy", "triton", 3), 4))[2:]
    world = Ahead(fails=lambda case: [FAIL] if case == third else [], coming=cases.coming)
    world.go(plan, cases)
    assert [some[0][0] for some in world.foreseen[:2]] == [fourth] * 2


def test_cases_in_flight_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = InFlight(tmp_path, "w")
    cases = list(itertools.islice(drawn(), 6))

    def there() -> set[Case]:
        return {codec.read(path).case for path in tmp_path.glob("in-flight-w-*.json")}

    def run(case: Case) -> set[Case]:
        return there()

    in_flight.put(cases[1:3])
    assert in_flight.before(run)(cases[0]) == set(cases[:3])
    in_flight.put(cases[2:5])
    assert there() == set(cases[1:5])
    assert in_flight.before(run)(cases[2]) == set(cases[1:5])
    monkeypatch.setattr("fuzz.in_flight._CASES_MAX", 4)
    in_flight.put(cases[4:])
    assert there() == {cases[1], *cases[3:]}
    in_flight.put(cases[:1])
    assert there() == {cases[0], *cases[3:]}
    in_flight.clear()
    assert list(tmp_path.iterdir()) == []


def cases_a_setup(seconds: float | None, cases: int | None) -> list[int]:
    """Cases of each setup in a world in which no case brings anything new but the first of its setup."""
    world = World(fails=lambda case: [], ends=lambda case: Trace(ended=End(how=Termination.DONE)))
    source = rounds(3, "toy", "triton", 20, LONG)
    plan = replace(PLAN, seconds=seconds, cases=cases)
    campaign(plan, CaseStream(source, source.coming, source.leave), world.hooks())
    return [len(list(group)) for _, group in itertools.groupby(world.ran, key=lambda case: case.setup)]


def test_a_setup_that_brings_nothing_new_is_left_where_time_is_short_and_never_where_cases_are_counted() -> None:
    assert cases_a_setup(None, 60) == [20, 20, 20]
    *whole, _ = cases_a_setup(12.0, None)
    assert len(whole) >= 5
    # Those that run ahead, though all but the first brought nothing, and those that were drawn by then.
    assert set(whole) <= set(range(CASES_ANNOUNCED, CASES_ANNOUNCED + DRAWN_AHEAD + 1))
    assert CASES_ANNOUNCED > STALE_CASES
