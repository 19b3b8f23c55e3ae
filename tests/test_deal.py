"""Dealing: whatever the members' speeds, together they run what one alone would run, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fuzz.parallel.scheduler import Deal, Grant, Wish

A_ROUND = 4


def round_of(number: int) -> list[tuple[int, int]]:
    """A round's cases. Some rounds are short."""
    return [(number, case) for case in range(1 if number % 5 == 3 else A_ROUND)]


def fits(case: tuple[int, int]) -> bool:
    """Whether a case can be run. Of some setups none can, of others the first cannot."""
    number, place = case
    return not (number % 7 == 2 or (number % 3 == 1 and place == 0))


def alone(limit: int) -> list[tuple[int, int]]:
    ran: list[tuple[int, int]] = []
    number = 0
    while True:
        for case in round_of(number):
            if len(ran) == limit:
                return ran
            if fits(case):
                ran.append(case)
        number += 1


@dataclass
class Sim:
    """A member that does as fuzz/parallel/shard.py does."""

    deal: Deal
    number: int
    ran: list[tuple[int, int]]
    grant: Grant | None = None

    def steps(self) -> Iterator[Wish | None]:
        """Each step a wish that has to be granted before the next, or None for a case that was run."""
        yield Wish()
        while self.grant and self.grant.round is not None:
            at, ran = self.grant.round, 0
            for case in round_of(at):
                while self.grant.round == at and ran >= self.grant.cases:
                    yield Wish(round=at, ran=ran, drained=False)
                if self.grant.round != at:
                    break
                if fits(case):
                    self.ran.append(case)
                    ran += 1
                    yield None
            else:
                yield Wish(round=at, ran=ran)


def together(limit: int | None, members: int, luck: random.Random, steps_max: int = 10_000) -> list[tuple[int, int]]:
    deal, ran = Deal(limit, A_ROUND), []
    sims = [Sim(deal, number, ran) for number in range(members)]
    going = {sim.number: sim.steps() for sim in sims}
    waiting: set[int] = set()
    for _ in range(steps_max):
        free = [number for number in going if number not in waiting]
        if not free:
            assert not going, "all that are left wait for each other"
            break
        number = luck.choice(free)
        try:
            wish = next(going[number])
        except StopIteration:
            del going[number]
            continue
        if wish:
            waiting.add(number)
            for other, grant in deal.ask(number, wish):
                assert other in waiting
                waiting.discard(other)
                sims[other].grant = grant
    return ran


@pytest.mark.parametrize("members", [1, 2, 3, 7])
@pytest.mark.parametrize("limit", [1, 3, 10, 50])
def test_the_same_cases_whatever_the_number_and_the_speed_of_members(members: int, limit: int) -> None:
    wanted = alone(limit)
    for seed in range(30):
        ran = together(limit, members, random.Random(seed))
        assert sorted(ran) == sorted(wanted)
        assert len(set(ran)) == limit


def test_without_a_limit_rounds_go_on_for_ever() -> None:
    ran = together(None, 3, random.Random(0), steps_max=500)
    assert len(ran) > 200
    assert len(set(ran)) == len(ran)


def test_no_more_than_is_certain_is_granted_and_more_once_it_is() -> None:
    deal = Deal(6, A_ROUND)
    assert deal.ask(0, Wish()) == [(0, Grant(round=0, cases=4))]
    assert deal.ask(1, Wish()) == [(1, Grant(round=1, cases=2))]
    assert deal.ask(2, Wish()) == [], "round 0 may yet use up all that is left"
    assert deal.ask(1, Wish(round=1, ran=2, drained=False)) == []
    # Of round 0 one case alone could be run, so that the others get more.
    assert deal.ask(0, Wish(round=0, ran=1)) == [
        (2, Grant(round=2, cases=1)),
        (1, Grant(round=1, cases=4)),
    ]
    assert deal.ask(1, Wish(round=1, ran=4)) == []
    # The limit is met, and all rounds are finished.
    ended = deal.ask(2, Wish(round=2, ran=1, drained=False))
    assert sorted(ended, key=lambda answer: answer[0]) == [(member, Grant(round=None)) for member in range(3)]


def test_who_leaves_keeps_nobody_waiting() -> None:
    deal = Deal(6, A_ROUND)
    deal.ask(0, Wish())
    deal.ask(1, Wish())
    assert deal.ask(1, Wish(round=1, ran=2, drained=False)) == []
    assert deal.leave(0) == [(1, Grant(round=None))]
    assert deal.leave(1) == []
