"""A chunk: a piece of a campaign that any node can do, named by what it asks for.

Two kinds: all cases of some rounds, whose failures are only told; and one failure of such a chunk, to be confirmed and
made small. Both are a few hundred bytes, and mean the same wherever and however often they are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzz.aiming import aim_of
from fuzz.draw.rounds import Rounds, enough_rounds, rounds
from fuzz.parallel.shard import plan_from_json, plan_to_json
from fuzz.stats import Plan
from repro.cases.case import Case
from repro.cases.codec import digest

# Cases of the first chunk: what a setup costs here is known only afterwards.
ROUNDS_FIRST = 1
# From one chunk to the next the number of rounds grows by this factor at most: the first ones are the small ones.
GROWTH_MAX = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """plan: the campaign's, without its limits. first, last: the rounds, last excluded. limit: cases of the whole
    campaign, as in room(). settle: the failure, by fingerprint, to be confirmed and made small; case: the digest of a
    case of these rounds that shows it. Both empty: run all cases."""

    plan: Plan
    cases_per_setup: int
    first: int
    last: int
    limit: int | None = None
    settle: str = ""
    case: str = ""

    @property
    def id(self) -> str:
        """The same for the same work."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """For a person."""
        rounds = f"rounds {self.first} to {self.last - 1}" if self.last - self.first > 1 else f"round {self.first}"
        return f"{self.settle} of {rounds}" if self.settle else rounds

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"plan": plan_to_json(self.plan)}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Chunk:
        return cls(**(dict(form) | {"plan": plan_from_json(form["plan"])}))

    def rounds(self) -> Rounds:
        """All its cases, those that show the failure among them."""
        plan, numbers = self.plan, range(self.first, self.last)
        return rounds(plan.seed, plan.runner, plan.backend, self.cases_per_setup, numbers, self.limit, aim_of(plan.aim))

    def up_to_the_case(self) -> list[Case]:
        """The cases of its setup up to the one that shows the failure: what a session ran before may take part."""
        before: list[Case] = []
        for case in self.rounds():
            before = [*before, case] if before and case.setup == before[0].setup else [case]
            if digest(case) == self.case:
                return before
        raise ValueError(f"{self.name}: no case {self.case}")


class Cutter:
    """Cuts a campaign's rounds into chunks of about so many seconds. Mutable: it knows what it has cut, and how long
    rounds took. limit: cases in all; None: for ever."""

    def __init__(self, plan: Plan, cases_per_setup: int, limit: int | None, seconds: float) -> None:
        # What a chunk is named by has no limits in it that concern others.
        self._whole = Chunk(
            plan=replace(plan, cases=None, seconds=None),
            cases_per_setup=cases_per_setup,
            first=0,
            last=0,
            limit=limit,
        )
        self._end = None if limit is None else enough_rounds(limit, cases_per_setup)
        self._seconds = seconds
        self._rounds = float(ROUNDS_FIRST)
        self.ended = False

    def next(self) -> Chunk | None:
        """The next chunk, which nobody else gets; None if there is nothing left."""
        first = self._whole.last
        last = first + max(1, round(self._rounds))
        if self._end is not None:
            last = min(last, self._end)
        if self.ended or last <= first:
            self.ended = True
            return None
        self._whole = replace(self._whole, first=first, last=last)
        return self._whole

    def took(self, chunk: Chunk, seconds: float) -> None:
        """How long a chunk took: the next ones are cut accordingly."""
        rounds = chunk.last - chunk.first
        if seconds > 0:
            self._rounds = min(rounds * self._seconds / seconds, rounds * GROWTH_MAX, GROWTH_MAX * self._rounds)


def settling(chunk: Chunk, fingerprint: str, case: Case) -> Chunk:
    """What confirms and shrinks this failure of the chunk."""
    return replace(chunk, settle=fingerprint, case=digest(case))
