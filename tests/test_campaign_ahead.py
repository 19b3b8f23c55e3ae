"""What a campaign says ahead of time: the next case, the setups to come, and what is on disk meanwhile."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.campaign import STALE_CASES, campaign
from fuzz.case_source import CaseStream
from fuzz.draw.rounds import ROUNDS_ANNOUNCED, rounds
from fuzz.in_flight import InFlight
from fuzz.triage import Hooks
from repro.cases import codec
from repro.cases.case import Case, Setup
from repro.traces.trace import End, Termination, Trace
from tests.builders.campaign_world import FAIL, PLAN, World, drawn, trace_of


@dataclass
class Ahead(World):
    """Remembers what was said to come, and checks that it did."""

    sent: list[Case] = field(default_factory=list)
    expected: list[tuple[Setup, ...]] = field(default_factory=list)

    def hooks(self) -> Hooks:
        return replace(
            super().hooks(), send=self.sent.append, expect=lambda setups: self.expected.append(tuple(setups))
        )


def test_what_is_sent_ahead_is_the_next_case_on_a_setup_that_was_built() -> None:
    world = Ahead(fails=lambda case: [])
    world.go()
    expected = [
        after
        for before, case, after in zip([None, *world.ran], world.ran, world.ran[1:], strict=False)
        if before is not None and before.setup == case.setup == after.setup
    ]
    assert world.sent == expected
    assert len(expected) == 40 - 2 * 5


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
        told = [replace(world.go(plan), started="", ended="") for world in (plain, ahead)]
        assert told[0] == told[1]
        assert (ahead.ran, ahead.log) == (plain.ran, plain.log)


def test_the_setups_of_the_next_rounds_are_expected_and_again_after_triage() -> None:
    setups = [case.setup for case in itertools.islice(rounds(5, "toy", "triton", 1), 9)]
    cases = rounds(5, "toy", "triton", 2)
    world = Ahead(fails=lambda case: [], coming=cases.coming)
    world.go(replace(PLAN, cases=6), cases)
    assert world.expected == [tuple(setups[n : n + ROUNDS_ANNOUNCED]) for n in (1, 2, 3)]
    failing = Ahead(fails=lambda case: [FAIL], coming=lambda: setups[:1])
    failing.go(replace(PLAN, cases=1))
    assert failing.expected[0] == failing.expected[-1] == (setups[0],)
    smallest = failing.kept[-1].case.setup
    assert (smallest,) * PLAN.confirm_tries in failing.expected


def test_cases_in_flight_are_on_disk(tmp_path: Path) -> None:
    in_flight = InFlight(tmp_path, "w")
    cases = list(itertools.islice(drawn(), 4))
    for case in cases:
        in_flight.put(case)
        in_flight.put(case)
    found = [codec.read(path).case for path in sorted(tmp_path.glob("in-flight-w-*.json"))]
    assert sorted(map(codec.digest, found)) == sorted(map(codec.digest, cases[-2:]))
    in_flight.clear()
    assert list(tmp_path.iterdir()) == []


def cases_a_setup(seconds: float | None, cases: int | None) -> list[int]:
    """Of a world in which no case brings anything new but the first of its setup."""
    world = World(fails=lambda case: [], ends=lambda case: Trace(ended=End(how=Termination.DONE)))
    source = rounds(3, "toy", "triton", 20)
    plan = replace(PLAN, seconds=seconds, cases=cases)
    campaign(plan, CaseStream(source, source.coming, source.leave), world.hooks())
    return [len(list(group)) for _, group in itertools.groupby(world.ran, key=lambda case: case.setup)]


def test_a_setup_that_brings_nothing_new_is_left_where_time_is_short_and_never_where_cases_are_counted() -> None:
    assert cases_a_setup(None, 60) == [20, 20, 20]
    *whole, _ = cases_a_setup(6.0, None)
    assert len(whole) >= 5
    # The first case, those that brought nothing, and the one that was under way by then.
    assert set(whole) <= {STALE_CASES + 1, STALE_CASES + 2}
