"""Who runs which cases, where several members work on one campaign: whole rounds in turn, as each gets its setup
captured once, and together exactly those cases that one member alone would run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a member asks for. round: the one it has been at (None: it has had none). ran: its cases that were run;
    those that could not be do not count. drained: whether it has no more cases."""

    round: int | None = None
    ran: int = 0
    drained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A round, and how many of its cases may be run so far. No round: there is nothing left to do."""

    round: int | None
    cases: int = 0


Grants = list[tuple[int, Grant]]


class Deal:
    """limit: cases in all, None for no limit; a_round: the most that a round has. Mutable: it knows what was granted.

    Alone, one member would run round after round until the limit is met. How many cases a round leaves to the next
    is known once it is finished; until then the most is assumed, so that nobody ever runs a case too many, and who
    wants more than is certain waits.
    """

    def __init__(self, limit: int | None, a_round: int) -> None:
        self._limit, self._a_round = limit, a_round
        self._granted = 0
        self._ran: dict[int, int] = {}  # of the rounds that are finished
        self._at: dict[int, int] = {}  # which round a member is at
        self._waiting: dict[int, Wish] = {}

    def ask(self, member: int, wish: Wish) -> Grants:
        """What members may do now, of all who wait. Who is not among them is answered later."""
        if wish.round is not None and wish.drained:
            self._finish(member, wish.ran)
            wish = Wish()
        self._waiting[member] = wish
        return self._answers()

    def leave(self, member: int) -> Grants:
        """A member has ended. What it had begun nobody ends; as far as the others know, it ran all of it."""
        self._waiting.pop(member, None)
        self._finish(member, self._a_round)
        return self._answers()

    def _answers(self) -> Grants:
        """Everything that can be answered now; one answer may allow another."""
        given: Grants = []
        while answer := self._next_answer():
            member, grant = answer
            del self._waiting[member]
            if grant.round is not None and grant.round == self._granted:
                self._granted += 1
                self._at[member] = grant.round
            given.append(answer)
        return given

    def _next_answer(self) -> tuple[int, Grant] | None:
        for member, wish in self._waiting.items():
            grant = self._answer(member, wish)
            if grant:
                return member, grant
        return None

    def _answer(self, member: int, wish: Wish) -> Grant | None:
        """What this member may do; None if that is not known before others have finished."""
        if wish.round is not None:
            more = self._allowed(wish.round)
            if more > wish.ran:
                return Grant(round=wish.round, cases=more)
            if not self._all_finished_before(wish.round):
                return None
            self._finish(member, wish.ran)
        cases = self._allowed(self._granted)
        if cases:
            return Grant(round=self._granted, cases=cases)
        return Grant(round=None) if self._all_finished_before(self._granted) else None

    def _finish(self, member: int, ran: int) -> None:
        number = self._at.pop(member, None)
        if number is not None:
            self._ran[number] = ran

    def _allowed(self, number: int) -> int:
        """How many cases of this round may be run for certain."""
        if self._limit is None:
            return self._a_round
        before = sum(self._ran.get(earlier, self._a_round) for earlier in range(number))
        return max(0, min(self._a_round, self._limit - before))

    def _all_finished_before(self, number: int) -> bool:
        return self._limit is None or all(earlier in self._ran for earlier in range(number))
