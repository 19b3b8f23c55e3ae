"""The cases of a campaign, as an endless sequence that depends on the seed number alone.

Hypothesis interprets bytes that are derived from the seed and the case's place in the campaign. Its usual way of
running a test also mixes in constants found in the modules that happen to be loaded, so that the same seed could
mean other cases elsewhere; here no case depends on another case, on a target's answer or on the process.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.draw.aim import ANY, Aim, aimed_setups, of_families
from fuzz.draw.covering import ROWS, rows
from fuzz.draw.meetings import Meetings
from fuzz.draw.near import based, near_cases, near_setups
from fuzz.draw.strategies import cases, fullest, setups
from fuzz.draw.swarm import BROAD, LONG, SMALL, WIDE, Swarm, swarms
from repro.cases.case import Case, Setup
from repro.cases.codec import digest

T = TypeVar("T")

# Bytes for one example: twice what Hypothesis lets one use. Six calls of eight requests take about 500.
BYTES = 1 << 14
# Rounds at the start that are small whatever their swarm says: their failures are found, and shrunk, soonest.
SMALL_ROUNDS = 3
# The first rounds have so few cases: most bugs show within five cases of the first setup that can show them, so that
# what costs is waiting for that setup.
SHORT_ROUNDS, SHORT_CASES = 24, 6
# The round with long contexts; and of so many rounds the one with wide shapes, which cost seconds a case, and the one
# with a broad model.
LONG_ROUND, WIDE_ROUNDS, WIDE_ROUND, BROAD_ROUND = 4, 24, 23, 11
# Of so many rounds the one whose models are of a family that setups name, where the runner has any; never one of those.
FAMILY_ROUNDS, FAMILY_ROUND = 4, 2
# After so many draws that gave only known cases, the setup has no more to offer and the round ends early.
REPEATS_MAX = 50
# The numbers of all rounds: more than will ever be run.
EVERY = range(1 << 62)
# How many rounds ahead a sequence of cases announces: more than are ever opened ahead. And how many cases of each:
# sessions that were opened ahead run them while others are judged, and a campaign judges them all, whatever the first
# ones gave. Opening a session on a GPU costs as much as some twenty cases.
ROUNDS_ANNOUNCED, CASES_ANNOUNCED = 9, 16


@functools.cache
def feeding() -> Callable[[Callable[[st.DataObject], None], bytes], None]:
    """A function that has another one draw from these bytes. One test of Hypothesis for all strategies: it reads and
    digests the source of each test."""
    collecting: list[Callable[[st.DataObject], None]] = []

    @settings(database=None, deadline=None)
    @given(st.data())
    def test(data: st.DataObject) -> None:
        collecting[-1](data)

    # Hypothesis adds an attribute to the test, which its types do not have.
    feed = test.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def fed(collect: Callable[[st.DataObject], None], content: bytes) -> None:
        collecting.append(collect)
        try:
            feed(content)
        finally:
            collecting.pop()

    return fed


def examples(strategy: st.SearchStrategy[T]) -> Callable[[str], T]:
    """A function from names to values of this strategy: the same name gives the same value for ever (as long as
    neither the strategy nor Hypothesis's reading of bytes changes)."""
    drawn: list[T] = []

    def collect(data: st.DataObject) -> None:
        drawn.append(data.draw(strategy))

    def example(name: str) -> T:
        drawn.clear()
        feeding()(collect, hashlib.shake_256(name.encode()).digest(BYTES))
        if not drawn:
            raise ValueError(f"{strategy} gave no value: it filters, or wants more than Hypothesis allows")
        return drawn[0]

    return example


class BegunRounds:
    """Rounds of which the first cases were drawn before their turn. Mutable. cases_of: the cases of a round."""

    def __init__(self, cases_of: Callable[[int], Iterator[Case]]) -> None:
        self._cases_of = cases_of
        self._begun: dict[int, tuple[tuple[Case, ...], Iterator[Case]]] = {}

    def announce(self, numbers: Iterable[int]) -> tuple[tuple[Case, ...], ...]:
        """The first cases of these rounds; what was drawn of others is forgotten."""
        self._begun = {number: self._begun.get(number) or self._begin(number) for number in numbers}
        return tuple(first for first, _ in self._begun.values())

    def take(self, number: int) -> Iterator[Case]:
        """All cases of a round, whose turn has come."""
        first, rest = self._begun.pop(number, ((), None))
        return self._cases_of(number) if rest is None else chain(first, rest)

    def _begin(self, number: int) -> tuple[tuple[Case, ...], Iterator[Case]]:
        cases = self._cases_of(number)
        return tuple(islice(cases, CASES_ANNOUNCED)), cases


class Rounds(Iterator[Case]):
    """The cases of the rounds with these numbers, one after the other. Mutable: it knows which round it is at.
    drawn: the cases of a round. limit: of the whole campaign that they are a part of, as in room()."""

    def __init__(
        self, drawn: Callable[[int], Iterator[Case]], cases_per_setup: int, numbers: range, limit: int | None
    ) -> None:
        def cases_of(number: int) -> Iterator[Case]:
            return islice(drawn(number), room(limit, cases_per_setup, number))

        self._rounds = BegunRounds(cases_of)
        self._ahead = numbers  # those that have not begun
        self._round: Iterator[Case] = iter(())

    def __next__(self) -> Case:
        while True:
            case = next(self._round, None)
            if case is not None:
                return case
            if not self._ahead:
                raise StopIteration
            number, self._ahead = self._ahead[0], self._ahead[1:]
            self._round = self._rounds.take(number)

    def leave(self) -> None:
        """Go on with the next round."""
        self._round = iter(())

    def coming(self) -> tuple[tuple[Case, ...], ...]:
        """The first cases of each of the next few rounds, in order."""
        return self._rounds.announce(self._ahead[:ROUNDS_ANNOUNCED])


def rounds(
    seed: int,
    runner: str,
    backend: str,
    cases_per_setup: int,
    numbers: range = EVERY,
    limit: int | None = None,
    aim: Aim = ANY,
) -> Rounds:
    """Round after round: for ever, or those with these numbers. aim: what all setups have."""

    def drawn(number: int) -> Iterator[Case]:
        return round_cases(seed, number, runner, backend, cases_per_setup, aim)

    return Rounds(drawn, cases_per_setup, numbers, limit)


def cases_before(number: int, cases_per_setup: int) -> int:
    """The number of cases that the rounds before this one may have."""
    short = min(number, SHORT_ROUNDS)
    return short * min(SHORT_CASES, cases_per_setup) + (number - short) * cases_per_setup


def room(limit: int | None, cases_per_setup: int, number: int) -> int:
    """The number of cases that a round may have in a campaign of so many that several share: it is as if each round had
    all that it may have, so that the others' cases need not be drawn to know."""
    before, behind = (cases_before(n, cases_per_setup) for n in (number, number + 1))
    return max(0, (behind if limit is None else min(behind, limit)) - before)


def enough_rounds(limit: int, cases_per_setup: int) -> int:
    """The fewest rounds that may have so many cases."""
    short = min(SHORT_ROUNDS, -(-limit // min(SHORT_CASES, cases_per_setup)))
    return short + max(0, -(-(limit - cases_before(short, cases_per_setup)) // cases_per_setup))


def part(limit: int | None, cases_per_setup: int, index: int, count: int) -> range:
    """The rounds of one of `count` parts of a campaign, index from 1 on: disjoint, and together all there are."""
    return range(index - 1, EVERY.stop if limit is None else enough_rounds(limit, cases_per_setup), count)


def round_setup(seed: int, number: int, runner: str, backend: str, aim: Aim = ANY) -> tuple[Swarm, Setup]:
    """A round's swarm, and the setup under it."""
    name = f"eagleeye {seed} {runner} {backend}"
    planned, aim = _turn(seed, number, runner, backend, aim)
    cycle, place = divmod(planned, ROWS)
    row = rows(runner, backend, f"{name} cycle {cycle}")[place]
    swarm = row.swarm(examples(swarms())(f"{name} {number} swarm"))
    if number < SMALL_ROUNDS:
        swarm = replace(swarm, size=SMALL)
    if number == LONG_ROUND:
        swarm = replace(swarm, size=LONG, lengths=("long", "limit"))
    if number % WIDE_ROUNDS == WIDE_ROUND:
        swarm = replace(swarm, size=WIDE)
    if number % WIDE_ROUNDS == BROAD_ROUND:
        swarm = replace(swarm, size=BROAD)
    if aim == ANY:
        return swarm, examples(setups(runner, backend, swarm))(f"{name} {number} setup")
    return aim.swarm(swarm), examples(aimed_setups(runner, backend, swarm, aim))(f"{name} {number} setup")


def _turn(seed: int, number: int, runner: str, backend: str, aim: Aim) -> tuple[int, Aim]:
    """A round's place in the plan, and its aim. Families come in turn, and their rounds are counted apart: all others
    meet the states that they would meet without them."""
    others = of_families(runner, backend, aim)
    turn, place = divmod(number, FAMILY_ROUNDS)
    if not others:
        return number, aim
    if place == FAMILY_ROUND:
        return turn, others[(seed + turn) % len(others)]
    return number - turn - (place > FAMILY_ROUND), aim


def round_cases(
    seed: int, number: int, runner: str, backend: str, cases_per_setup: int, aim: Aim = ANY
) -> Iterator[Case]:
    """One round: a swarm, a setup under it, then so many different cases on that setup, fewer in the first rounds."""
    name = f"eagleeye {seed} {runner} {backend} {number}"
    if aim.near:
        # The first round is on the stored case's own setup, and begins with that case.
        case = examples(near_setups(aim))(f"{name} setup") if number else based(aim)
        yield case
        yield from different(name, near_cases(case), room(None, cases_per_setup, number) - 1, {digest(case)})
        return
    swarm, setup = round_setup(seed, number, runner, backend, aim)
    first = fullest(setup)
    meetings = Meetings(setup, name)
    yield meetings.met(first)
    count = room(None, cases_per_setup, number) - 1
    yield from different(name, cases(setup, swarm), count, {digest(first)}, meetings.changed)


def different(
    name: str,
    strategy: st.SearchStrategy[Case],
    count: int,
    known: Collection[str] = (),
    changed: Callable[[Case], Case] = lambda case: case,
) -> Iterator[Case]:
    """Up to `count` cases, no two alike. known: digests of others that were drawn. changed: what becomes of each case
    that is drawn."""
    example = examples(strategy)
    seen = set(known)
    count += len(seen)
    repeats = number = 0
    while len(seen) < count and repeats < REPEATS_MAX:
        case = changed(example(f"{name} case {number}"))
        number += 1
        if digest(case) in seen:
            repeats += 1
            continue
        seen.add(digest(case))
        yield case
