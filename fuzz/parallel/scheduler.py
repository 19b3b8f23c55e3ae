"""Which shard of a campaign runs which cases: whole rounds in turn, since each captures its setup once, and together
exactly those cases that one process alone would run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

# Rounds that a shard of an endless campaign knows it will have next, so that it can open their sessions ahead.
AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A shard's request for work. round: the round it works on (None at first). ran: cases of that round that ran;
    unsupported ones do not count. drained: whether the round has no more cases."""

    round: int | None = None
    ran: int = 0
    drained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A round, and how many of its cases may be run so far. No round: there is no work left. ahead: the rounds that
    are this shard's next, as far as that is certain."""

    round: int | None
    cases: int = 0
    ahead: tuple[int, ...] = ()


# By shard number.
Leases = list[tuple[int, Lease]]


class RoundScheduler:
    """limit: cases in all, None for no limit; most: how many cases a round may have, by its place among all; rounds:
    how many there are, None for no end. Mutable: it knows which leases it gave.

    A single process would run round after round until the limit is met. How many cases a round leaves to the next is
    known once it is finished; until then the most is assumed, so that no shard ever runs a case too many, and a shard
    that wants more than is certain waits.
    """

    def __init__(self, limit: int | None, most: Callable[[int], int], rounds: int | None = None) -> None:
        self._limit, self._most, self._rounds = limit, most, rounds
        self._leased = 0  # rounds
        self._ran: dict[int, int] = {}  # cases of each finished round
        self._works_on: dict[int, int] = {}  # the round of each shard
        self._waiting: dict[int, LeaseRequest] = {}
        self._endless = limit is None and rounds is None
        self._reserved: defaultdict[int, list[int]] = defaultdict(list)  # of each shard of an endless campaign
        self._returned: list[int] = []  # reserved by shards that have left

    def ask(self, shard: int, request: LeaseRequest) -> Leases:
        """The leases that can be given now, of all shards that wait. The other shards are answered later."""
        if request.round is not None and request.drained:
            self._finish(shard, request.ran)
            request = LeaseRequest()
        self._waiting[shard] = request
        return self._answers()

    def leave(self, shard: int) -> Leases:
        """A shard has ended. Its unfinished round is not reassigned; it counts as fully run."""
        self._waiting.pop(shard, None)
        self._returned += self._reserved.pop(shard, [])
        self._finish(shard)
        return self._answers()

    def _answers(self) -> Leases:
        """Everything that can be answered now; one answer may allow another."""
        leases: Leases = []
        while answer := self._next_answer():
            shard, lease = answer
            del self._waiting[shard]
            if lease.round is not None and lease.round == self._leased and not self._endless:
                self._leased += 1
            if lease.round is not None:
                self._works_on[shard] = lease.round
            leases.append(answer)
        return leases

    def _next_answer(self) -> tuple[int, Lease] | None:
        for shard, request in self._waiting.items():
            lease = self._answer(shard, request)
            if lease:
                return shard, lease
        return None

    def _answer(self, shard: int, request: LeaseRequest) -> Lease | None:
        """This shard's lease; None if it depends on rounds that others have not finished."""
        if request.round is not None:
            more = self._allowed(request.round)
            if more > request.ran:
                return Lease(round=request.round, cases=more, ahead=tuple(self._reserved[shard]))
            if not self._all_finished_before(request.round):
                return None
            self._finish(shard, request.ran)
        if self._endless:
            return self._next_reserved(shard)
        cases = self._allowed(self._leased)
        if cases:
            return Lease(round=self._leased, cases=cases)
        return Lease(round=None) if self._all_finished_before(self._leased) else None

    def _next_reserved(self, shard: int) -> Lease:
        """The round that was this shard's next; it learns which ones follow."""
        reserved = self._reserved[shard]
        while len(reserved) <= AHEAD:
            if self._returned:
                reserved.append(self._returned.pop(0))
            else:
                reserved.append(self._leased)
                self._leased += 1
        number = reserved.pop(0)
        return Lease(round=number, cases=self._most(number), ahead=tuple(reserved))

    def _finish(self, shard: int, ran: int | None = None) -> None:
        """ran: None if that is not known."""
        number = self._works_on.pop(shard, None)
        if number is not None:
            self._ran[number] = self._most(number) if ran is None else ran

    def _allowed(self, number: int) -> int:
        """How many cases of this round may be run for certain."""
        if self._rounds is not None and number >= self._rounds:
            return 0
        most = self._most(number)
        if self._limit is None:
            return most
        before = sum(self._ran[n] if n in self._ran else self._most(n) for n in range(number))
        return max(0, min(most, self._limit - before))

    def _all_finished_before(self, number: int) -> bool:
        return self._limit is None or all(earlier in self._ran for earlier in range(number))
