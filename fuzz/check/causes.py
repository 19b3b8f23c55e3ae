"""New failures grouped by their cause: by the first value that was wrong, which the others follow from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuzz.check.location import Location
from repro.cases.case import Case
from repro.traces.finding import Finding, Verdict

NAME_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A case of the plan, the name of its item, and those of its failures that are looked at."""

    item: str
    case: Case
    failures: tuple[Verdict, ...]

    @property
    def first(self) -> Verdict:
        """The first wrong value: that of the earliest step, and in it of the earliest oracle, as oracles come in the
        order in which a step goes. Failures without a value come last."""
        return min(self.failures, key=lambda verdict: verdict.cell.step if verdict.cell else len(self.case.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """cases: those that it makes fail, the one that shows it first in front. finding: the first case that fails in a
    fresh process too, and where it is stored. wrote: which line writes the wrong value, on the base and here;
    location: that of them to look at."""

    cases: tuple[Failing, ...]
    finding: Finding | None = None
    wrote: str = ""
    location: Location | None = None

    @property
    def first(self) -> Verdict:
        return self.cases[0].first

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(failing.case.setup.backend for failing in self.cases))

    @property
    def shown(self) -> set[tuple[str, str]]:
        return {kind(verdict) for failing in self.cases for verdict in failing.failures}

    @property
    def consequences(self) -> tuple[str, ...]:
        """The other failures of these cases: oracle and place, each once."""
        cause = kind(self.first)
        every = dict.fromkeys(kind(verdict) for failing in self.cases for verdict in failing.failures)
        return tuple(f"{oracle} at {where}" if where else oracle for oracle, where in every if (oracle, where) != cause)

    @property
    def name(self) -> str:
        """The failure as a file's name: runner, backend, oracle, where."""
        words = (self.first.runner, self.first.backend, self.first.oracle, self.first.where)
        return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(filter(None, words))).strip("-")[:NAME_MAX]


def kind(verdict: Verdict) -> tuple[str, str]:
    return verdict.oracle, verdict.where


def causes(failing: Iterable[Failing]) -> list[Cause]:
    """One for each runner and buffer that is wrong first, over all backends; failures that are nothing but
    consequences of another cause on the same runner are that cause's."""
    groups: dict[tuple[str, str], list[Failing]] = {}
    for case in failing:
        first = case.first
        groups.setdefault((first.runner, first.cell.buffer if first.cell else first.where), []).append(case)
    return _folded([Cause(cases=tuple(group)) for group in groups.values()])


def _folded(every: Sequence[Cause]) -> list[Cause]:
    """Without those that are consequences of another one, whose cases they become."""
    kept = list(every)
    for cause in every:
        home = next((place for place, other in enumerate(kept) if _explains(other, cause)), None)
        if home is not None:
            kept[home] = Cause(cases=(*kept[home].cases, *cause.cases))
            kept.remove(cause)
    return kept


def _explains(cause: Cause, other: Cause) -> bool:
    """True if this cause shows all that the other does, and something before it."""
    firsts = kind(cause.first) != kind(other.first)
    return firsts and cause.first.runner == other.first.runner and other.shown <= cause.shown
