"""A schedule: the steps of a campaign's cases in which the float64 reference is asked, whatever graph and eager give.

All steps of every setup's first case, then those in which two states meet that have not met on it, and of all others a
drawn sample. What it costs is bounded by counts and not by a clock, so that a campaign asks the same on a loaded
machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from fuzz.draw import states
from repro.cases.case import Case, Setup, Step, accepted_max, seq_len_max
from repro.cases.codec import digest
from repro.cases.drawn import is_drawn

Key = TypeVar("Key")
Kept = TypeVar("Kept")

# Setups that are remembered: more than are ever opened ahead; and cases that were announced and may never come.
_SETUPS_MAX, _CASES_MAX = 32, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """novel: the most steps of a setup that are asked for what is new in them, behind its first case. each: of so many
    others one is drawn."""

    novel: int
    each: int


# Emulated an opinion costs as much as a step of Triton's interpreter, and as two of the stand-ins for other kernels;
# over the experts of a NEXTN model as three steps, on a GPU as several. docs/oracles.md has what comes of it.
ON_GPU, INTERPRETED, STOOD_IN = Share(novel=2, each=128), Share(novel=6, each=32), Share(novel=4, each=32)
EXPERTS = Share(novel=2, each=64)


def share_of(engine: str, setup: Setup) -> Share:
    if engine == "cuda":
        return ON_GPU
    if setup.algorithm == "NEXTN":
        return EXPERTS
    return INTERPRETED if engine == "toy" or setup.backend == "triton" else STOOD_IN


@dataclass(slots=True, kw_only=True)
class _Asked:
    """The questions to the reference on one setup. Mutable. met: the pairs of states of its steps that were asked.
    novel: how many were for these, behind its first case."""

    met: set[tuple[str, str]] = field(default_factory=set)
    novel: int = 0

    def is_novel(self, met: set[tuple[str, str]], first: bool, most: int) -> bool:
        """True if a step in which these meet is asked. first: of the first case, all of which is. most: of others."""
        if not first and (self.novel >= most or met <= self.met):
            return False
        self.met |= met
        self.novel += not first
        return True


class ReferenceSchedule:
    """Mutable: it knows the cases that are in flight, and of the latest setups what was asked."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._setups: dict[Setup, _Asked] = {}
        self._in_flight: dict[Case, tuple[int, ...]] = {}

    def draw(self, cases: Iterable[Case]) -> None:
        """These cases were drawn, in this order of each setup, and will be run."""
        for case in cases:
            if case not in self._in_flight:
                _keep_latest(self._in_flight, _CASES_MAX)
                self._in_flight[case] = self._chosen(case)

    def end(self, case: Case) -> None:
        """It has been run: a second run looks closer."""
        self._in_flight.pop(case, None)

    def steps(self, case: Case) -> tuple[int, ...] | None:
        """The steps of a case that was drawn; None of any other case, whose steps are all asked."""
        return self._in_flight.get(case)

    def _chosen(self, case: Case) -> tuple[int, ...]:
        first = case.setup not in self._setups
        record = self._setups.pop(case.setup, _Asked())
        _keep_latest(self._setups, _SETUPS_MAX)
        self._setups[case.setup] = record
        name, share = digest(case), share_of(self._engine, case.setup)
        return tuple(
            number
            for number, step in enumerate(case.steps)
            if step.requests
            and (record.is_novel(met_in(case, number), first, share.novel) or is_drawn(name, number, share.each))
        )


def met_in(case: Case, number: int) -> set[tuple[str, str]]:
    """The pairs of states that meet in a step, each state with itself among them."""
    names = states.reached(case, [number]) | _of_batch(case.setup, case.steps[number])
    return set(itertools.combinations_with_replacement(sorted(names), 2))


def _of_batch(setup: Setup, step: Step) -> set[str]:
    bucket = setup.bucket(step.busiest) if setup.replays(step.busiest, step.hidden) else 0
    lengths = [request.seq_len for request in step.requests]
    width, places = setup.num_draft_tokens, [length % setup.page_size for length in lengths]
    accepted, most = {request.accepted for request in step.requests}, accepted_max(setup)
    holds = {
        f"bucket {bucket}": True,
        "padded": len(step.requests) < bucket,
        "one token": 1 in lengths,
        "the longest request": seq_len_max(setup) in lengths,
        "a window is crossed": bool(setup.window) and max(lengths) > setup.window,
        "a page begins": setup.page_size > 1 and 0 in places,
        "a page ends within the draft": any(place > 0 and place + width > setup.page_size > 1 for place in places),
        "nothing accepted": most > 0 and 0 in accepted,
        "everything accepted": most > 0 and most in accepted,
        "greedy requests beside others": len({request.greedy for request in step.requests}) > 1,
    }
    return {name for name, holds_now in holds.items() if holds_now}


def _keep_latest(entries: dict[Key, Kept], most: int) -> None:
    while len(entries) >= most:
        del entries[next(iter(entries))]
