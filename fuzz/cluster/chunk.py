"""A chunk: a piece of a campaign that any node can do, named by what it asks for.

Two kinds: all cases of some rounds, whose failures are only told; and one failure of such a chunk, to be confirmed and
made small. Both are a few hundred bytes, and mean the same wherever and however often they are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, takewhile
from typing import Any

from fuzz.bench import a_round
from fuzz.draw.rounds import EVERY, Rounds, cases_before, room
from fuzz.stats import Plan
from repro.cases.case import Case, Target
from repro.cases.codec import digest

# Cases of the first chunk: what a setup costs here is known only afterwards.
ROUNDS_FIRST = 1
# From one chunk to the next the number of rounds grows by this factor at most: the first ones are the small ones.
GROWTH_MAX = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a campaign: some rounds, or one failure of theirs."""

    plan: Plan  # the campaign's, without its limits
    cases_per_setup: int
    first: int  # round
    last: int  # round, excluded
    step: int = 1  # from one round to the next
    limit: int | None = None  # cases of the whole campaign, as in room()
    mix: str = "rounds"  # as in bench.a_round
    settle: str = ""  # the failure, by fingerprint, to be confirmed and made small; empty: run all cases
    case: str = ""  # the digest of a case of these rounds that shows it

    @property
    def id(self) -> str:
        """The same for the same work."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """For a person."""
        numbers = self.numbers
        rounds = f"rounds {self.first} to {numbers[-1]}" if len(numbers) > 1 else f"round {self.first}"
        return f"{self.settle} of {rounds}" if self.settle else rounds

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {
            "plan": asdict(self.plan) | {"target": str(self.plan.target)}
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Chunk:
        plan = Plan(**(form["plan"] | {"target": Target.parse(form["plan"]["target"])}))
        return cls(**(dict(form) | {"plan": plan}))

    @property
    def numbers(self) -> range:
        return range(self.first, self.last, self.step)

    def rounds(self) -> Rounds:
        """All its cases, those that show the failure among them."""
        drawn = partial(a_round, self.plan, self.mix, count=self.cases_per_setup)
        return Rounds(drawn, self.cases_per_setup, self.numbers, self.limit)

    def up_to_the_case(self) -> list[Case]:
        """The cases of its setup up to the one that shows the failure: what a session ran before may take part."""
        before: list[Case] = []
        for case in self.rounds():
            before = [*before, case] if before and case.setup == before[0].setup else [case]
            if digest(case) == self.case:
                return before
        raise ValueError(f"{self.name}: no case {self.case}")


class Cutter:
    """Cuts a campaign's rounds into chunks of about so many seconds. Mutable: it knows what it has cut, how long rounds
    took, and how many cases they had.

    cases: exactly so many in all, those that one process would run; None: for ever. How many cases of a round can be
    run is known once it is done. Until then all that it may have are counted, so that no case is run too many; what
    depends on rounds under way is cut once they are done. numbers, limit: of a part of a campaign, as in room().
    """

    def __init__(
        self,
        plan: Plan,
        cases_per_setup: int,
        cases: int | None,
        seconds: float,
        *,
        numbers: range = EVERY,
        limit: int | None = None,
        mix: str = "rounds",
    ) -> None:
        # What a chunk is named by has no limits in it that concern others.
        whole = replace(plan, cases=None, seconds=None)
        self._whole = Chunk(
            plan=whole, cases_per_setup=cases_per_setup, first=0, last=0, step=numbers.step, limit=limit, mix=mix
        )
        self._left, self._ahead, self._seconds = cases, numbers, seconds
        self._under_way: dict[str, int] = {}  # the most cases of each chunk, by its id
        self._rounds = float(ROUNDS_FIRST)
        self.ended = False

    def next(self) -> Chunk | None:
        """The next chunk, handed out once; None if there is nothing left, or nothing for now."""
        numbers, limit = self._ahead[: max(1, round(self._rounds))], self._whole.limit
        sizes = [room(limit, self._whole.cases_per_setup, number) for number in numbers]
        if self._left is not None:
            free = self._left - sum(self._under_way.values())
            whole = len(list(takewhile(lambda most: most <= free, accumulate(sizes))))
            if not whole and self._under_way:
                return None
            if not whole and free:
                limit = cases_before(numbers[0], self._whole.cases_per_setup) + free
                whole, sizes = 1, [free]
            numbers, sizes = numbers[:whole], sizes[:whole]
        if self.ended or not numbers:
            self.ended = True
            return None
        self._ahead = self._ahead[len(numbers) :]
        chunk = replace(self._whole, first=numbers[0], last=numbers[-1] + 1, limit=limit)
        self._under_way[chunk.id] = sum(sizes)
        return chunk

    def ran(self, chunk: Chunk, cases: int | None, seconds: float = 0.0) -> None:
        """Take note of a chunk's cases, None if unknown, and its seconds: the next ones are cut
        accordingly."""
        most = self._under_way.pop(chunk.id, None)
        if most is not None and self._left is not None:
            self._left -= most if cases is None else cases
        rounds = len(chunk.numbers)
        if seconds > 0:
            self._rounds = min(rounds * self._seconds / seconds, rounds * GROWTH_MAX, GROWTH_MAX * self._rounds)


def settling(chunk: Chunk, fingerprint: str, case: Case) -> Chunk:
    """The chunk that confirms and shrinks this failure."""
    return replace(chunk, settle=fingerprint, case=digest(case))
