"""Make a failing case small: one loop over the passes."""

from __future__ import annotations

import time
from collections.abc import Callable

from repro.cases.case import Case, problems
from repro.cases.codec import digest
from repro.cases.sort_key import sort_key
from repro.shrinking.passes import PASSES


class NotFailing(ValueError):
    """The case to start from does not fail, so there is nothing to shrink towards."""


class _Spent(Exception):
    """The budget is used up."""


class _Search:
    """The best case so far, what was tried, and what is left of the budget."""

    def __init__(
        self,
        start: Case,
        still_fails: Callable[[Case], bool],
        runs_max: int,
        seconds_max: float,
        on_better: Callable[[Case], None],
        clock: Callable[[], float],
    ) -> None:
        self.best = start
        self._still_fails = still_fails
        self._runs_left = runs_max
        self._clock = clock
        self._stop = clock() + seconds_max
        self._shortest = seconds_max  # of the runs so far
        self._on_better = on_better
        self._tried: set[str] = set()

    def run(self, case: Case) -> bool:
        """True if this case fails. _Spent if the budget does not allow another run, as short as the shortest."""
        start = self._clock()
        if self._runs_left <= 0 or start >= self._stop or (self._tried and start + self._shortest > self._stop):
            raise _Spent
        self._runs_left -= 1
        self._tried.add(digest(case))
        fails = self._still_fails(case)
        self._shortest = min(self._shortest, self._clock() - start)
        return fails

    def take(self, candidate: Case) -> bool:
        """Make it the best case if it is valid, simpler and fails. Nothing is run twice."""
        if sort_key(candidate) >= sort_key(self.best) or problems(candidate) or digest(candidate) in self._tried:
            return False
        if not self.run(candidate):
            return False
        self.best = candidate
        self._on_better(candidate)
        return True

    def round(self) -> bool:
        """Let every pass have its turn; whether any of them helped."""
        before = self.best
        for begin in PASSES:
            moves = begin(self.best)
            try:
                candidate = next(moves)
                while True:
                    candidate = moves.send(self.take(candidate))
            except StopIteration:
                pass  # how a generator says that it has no more to propose
        return self.best != before


def shrink(
    case: Case,
    still_fails: Callable[[Case], bool],
    *,
    runs_max: int,
    seconds_max: float,
    on_better: Callable[[Case], None],
    on_smallest: Callable[[Case], None] = lambda case: None,
    clock: Callable[[], float] = time.monotonic,
) -> Case:
    """The simplest case found that still fails, within the budget.

    `on_smallest` is called with it if no pass makes it simpler, so that it is not for the budget that it is no smaller.

    `on_better` is called at once with every improvement, so whatever ends this early (Ctrl-C, an exception from
    `still_fails`) loses nothing that was found. The first run checks the start. NotFailing if it does not fail;
    ValueError if it is not valid or the budget allows no run at all.
    """
    if problems(case):
        raise ValueError("; ".join(problems(case)))
    search = _Search(case, still_fails, runs_max, seconds_max, on_better, clock)
    try:
        fails = search.run(case)
    except _Spent:
        raise ValueError(f"{runs_max} runs and {seconds_max} s allow no run at all") from None
    if not fails:
        raise NotFailing(f"case {digest(case)} does not fail: nothing to shrink")
    try:
        while search.round():
            pass
        on_smallest(search.best)
    except _Spent:
        pass  # the best so far is the answer
    return search.best
