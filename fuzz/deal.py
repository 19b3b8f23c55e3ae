"""Who runs which cases, where several members work on one campaign: whole rounds in turn, as each gets its setup
captured once, and together exactly those cases that one member alone would run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A round, and how many of its cases may be run so far. No round: there is nothing left to do."""

    round: int | None
    cases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a member asks for. round: the one it has been at (None: it has had none). ran: its cases that were run;
    those that could not be do not count. drained: whether it has no more cases."""

    round: int | None = None
    ran: int = 0
    drained: bool = True


class Deal:
    """limit: cases in all, None for no limit; a_round: the most that a round has. Mutable: it knows what was granted.

    Alone, one member would run round after round until the limit is met. How many cases a round leaves to the next
    is known once it is finished; until then the most is assumed, so that nobody ever runs a case too many.
    """

    def __init__(self, limit: int | None, a_round: int) -> None:
        self._limit, self.a_round = limit, a_round
        self._granted = 0
        self._ran: dict[int, int] = {}  # of the rounds that are finished

    def answer(self, wish: Wish) -> Grant | None:
        """What the member may do; None if that is not known before others have finished. It then has to ask again."""
        if wish.round is not None and not wish.drained:
            more = self._allowed(wish.round)
            if more > wish.ran:
                return Grant(round=wish.round, cases=more)
            if not self._all_finished_before(wish.round):
                return None
        if wish.round is not None:
            self.finish(wish.round, wish.ran)
        cases = self._allowed(self._granted)
        if not cases:
            return Grant(round=None) if self._all_finished_before(self._granted) else None
        self._granted += 1
        return Grant(round=self._granted - 1, cases=cases)

    def finish(self, number: int, ran: int) -> None:
        """Take note that nobody goes on with this round."""
        self._ran[number] = ran

    def _allowed(self, number: int) -> int:
        """How many cases of this round may be run for certain."""
        if self._limit is None:
            return self.a_round
        before = sum(self._ran.get(earlier, self.a_round) for earlier in range(number))
        return max(0, min(self.a_round, self._limit - before))

    def _all_finished_before(self, number: int) -> bool:
        return self._limit is None or all(earlier in self._ran for earlier in range(number))
