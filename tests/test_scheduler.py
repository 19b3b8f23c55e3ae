"""Dealing: whatever the shards' speeds, together they run what one alone would run, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fuzz.parallel.scheduler import Lease, LeaseRequest, RoundScheduler

A_ROUND = 4


def round_of(number: int) -> list[tuple[int, int]]:
    """A round's cases. Some rounds are short."""
    return [(number, case) for case in range(1 if number % 5 == 3 else A_ROUND)]


def fits(case: tuple[int, int]) -> bool:
    """True if a case can be run. Of some setups none can, of others the first cannot."""
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
class Simulated:
    """A shard that does as fuzz/parallel/shard.py does."""

    scheduler: RoundScheduler
    number: int
    ran: list[tuple[int, int]]
    lease: Lease | None = None

    def steps(self) -> Iterator[LeaseRequest | None]:
        """Each step a request that has to be answered before the next, or None for a case that was run."""
        yield LeaseRequest()
        while self.lease and self.lease.round is not None:
            at, ran = self.lease.round, 0
            for case in round_of(at):
                while self.lease.round == at and ran >= self.lease.cases:
                    yield LeaseRequest(round=at, ran=ran, drained=False)
                if self.lease.round != at:
                    break
                if fits(case):
                    self.ran.append(case)
                    ran += 1
                    yield None
            else:
                yield LeaseRequest(round=at, ran=ran)


def together(limit: int | None, shards: int, luck: random.Random, steps_max: int = 10_000) -> list[tuple[int, int]]:
    scheduler = RoundScheduler(limit, lambda place: A_ROUND)
    ran: list[tuple[int, int]] = []
    sims = [Simulated(scheduler, number, ran) for number in range(shards)]
    going = {sim.number: sim.steps() for sim in sims}
    waiting: set[int] = set()
    for _ in range(steps_max):
        free = [number for number in going if number not in waiting]
        if not free:
            assert not going, "all that are left wait for each other"
            break
        number = luck.choice(free)
        try:
            request = next(going[number])
        except StopIteration:
            del going[number]
            continue
        if request:
            waiting.add(number)
            for other, lease in scheduler.ask(number, request):
                assert other in waiting
                waiting.discard(other)
                sims[other].lease = lease
    return ran


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("limit", [1, 3, 10, 50])
def test_the_same_cases_whatever_the_number_and_the_speed_of_members(shards: int, limit: int) -> None:
    wanted = alone(limit)
    for seed in range(30):
        ran = together(limit, shards, random.Random(seed))
        assert sorted(ran) == sorted(wanted)
        assert len(set(ran)) == limit


def test_without_a_limit_rounds_go_on_for_ever() -> None:
    ran = together(None, 3, random.Random(0), steps_max=500)
    assert len(ran) > 200
    assert len(set(ran)) == len(ran)


def test_no_more_than_is_certain_is_leased_and_more_once_it_is() -> None:
    scheduler = RoundScheduler(6, lambda place: A_ROUND)
    assert scheduler.ask(0, LeaseRequest()) == [(0, Lease(round=0, cases=4))]
    assert scheduler.ask(1, LeaseRequest()) == [(1, Lease(round=1, cases=2))]
    assert scheduler.ask(2, LeaseRequest()) == [], "round 0 may yet use up all that is left"
    assert scheduler.ask(1, LeaseRequest(round=1, ran=2, drained=False)) == []
    # Of round 0 one case alone could be run, so that the others get more.
    assert scheduler.ask(0, LeaseRequest(round=0, ran=1)) == [
        (2, Lease(round=2, cases=1)),
        (1, Lease(round=1, cases=4)),
    ]
    assert scheduler.ask(1, LeaseRequest(round=1, ran=4)) == []
    # The limit is met, and all rounds are finished.
    ended = scheduler.ask(2, LeaseRequest(round=2, ran=1, drained=False))
    assert sorted(ended, key=lambda answer: answer[0]) == [(shard, Lease(round=None)) for shard in range(3)]


def test_who_leaves_keeps_nobody_waiting() -> None:
    scheduler = RoundScheduler(6, lambda place: A_ROUND)
    scheduler.ask(0, LeaseRequest())
    scheduler.ask(1, LeaseRequest())
    assert scheduler.ask(1, LeaseRequest(round=1, ran=2, drained=False)) == []
    assert scheduler.leave(0) == [(1, Lease(round=None))]
    assert scheduler.leave(1) == []


def test_rounds_that_were_reserved_for_one_who_leaves_go_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.parallel.scheduler.AHEAD", 2)
    scheduler = RoundScheduler(None, lambda place: A_ROUND)
    assert scheduler.ask(0, LeaseRequest()) == [(0, Lease(round=0, cases=A_ROUND, ahead=(1, 2)))]
    assert scheduler.ask(1, LeaseRequest()) == [(1, Lease(round=3, cases=A_ROUND, ahead=(4, 5)))]
    assert scheduler.leave(0) == []
    assert scheduler.ask(1, LeaseRequest(round=3, ran=4)) == [(1, Lease(round=4, cases=A_ROUND, ahead=(5, 1)))]
    assert scheduler.ask(2, LeaseRequest()) == [(2, Lease(round=2, cases=A_ROUND, ahead=(6, 7)))]
