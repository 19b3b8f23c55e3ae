"""Finds the release or commit that brought a failure and the one that took it away: runs a case where that tells most,
until the posterior of changepoint.py leaves no doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from repro.upstream.changepoint import Place, next_look, posterior
from repro.upstream.rig import Refused, Sighting

_PLACES_SHOWN = 3
_BITS_MIN = 1e-3  # a look that is expected to tell less than this tells nothing


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A release or a commit and what was seen of it. Mutable: it counts. skipped: why the case could not be run there.
    besides: other failures of the same case."""

    name: str
    failed: int = 0
    passed: int = 0
    skipped: str = ""
    besides: Counter[str] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        return self.failed + self.passed

    def count(self, seen: Sequence[Sighting]) -> None:
        for run in seen:
            if run.bad is None:
                self.skipped = run.why
            elif run.bad:
                self.failed += 1
            else:
                self.passed += 1
            self.besides.update(run.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The result of a bisection, by names; empty where there is no such release or commit. before: whether the
    failure is as old as what was searched, and if so why nothing older counts. chance: of the posterior. rate: how
    often a bad run fails."""

    good: str = ""
    bad: str = ""
    last_bad: str = ""
    fixed: str = ""
    before: str = ""
    chance: float = 0.0
    rate: float = 1.0


@dataclass(slots=True, kw_only=True)
class Bisection:
    """The search over these candidates, oldest first. see: what up to so many runs on the candidate of that name show,
    and whether the first failure ends them. to_the_end: whether the last candidate is known to fail. runs: the most to
    spend; tries: on the first look at a candidate that is to fail. Mutable: it fills in the candidates."""

    candidates: list[Candidate]
    see: Callable[[str, int, bool], Sequence[Sighting]]
    tell: Callable[[str], None]
    to_the_end: bool = False
    confidence: float = 0.99
    runs: int = 1000
    tries: int = 5

    def go(self, first: str) -> Range:
        """Look at the candidate `first`, which is expected to fail, then wherever it tells most."""
        if not (start := self._named(first)).runs:
            self.look(start, self.tries)
        while True:
            usable = self._usable()
            places = self._places(usable)
            todo = self._next(usable, places)
            if todo is None:
                return self._range(usable, places)
            self.look(*todo, until_bad=True)

    def look(self, candidate: Candidate, most: int, *, until_bad: bool = False) -> None:
        """Run it there up to so many times, and tell what came of it."""
        candidate.count(self.see(candidate.name, most, until_bad))
        self.tell("; ".join(filter(None, (line(candidate), self._told()))))

    def ends(self) -> None:
        """Look at both ends of a range that is said to go from good to bad. Refused if it does not."""
        good, bad = self.candidates[0], self.candidates[-1]
        self.look(bad, self.tries)
        self.look(good, self.tries)
        for end in (good, bad):
            if end.skipped:
                raise Refused(f"{end.name} cannot be judged, so that nothing lies between: {end.skipped}")
        if good.failed and not bad.failed:
            raise Refused(f"the range is the wrong way round: {good.name} fails, {bad.name} does not")
        if good.failed:
            seen = f"it fails in {good.failed} of {good.runs} runs, like {bad.name}"
            raise Refused(f"{good.name} cannot be the good end: {seen}")

    def _named(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def _usable(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if not candidate.skipped]

    def _places(self, usable: Sequence[Candidate]) -> list[Place]:
        if not usable:
            return []
        failed, passed = [candidate.failed for candidate in usable], [candidate.passed for candidate in usable]
        return posterior(failed, passed, to_the_end=self.to_the_end)

    def _next(self, usable: Sequence[Candidate], places: Sequence[Place]) -> tuple[Candidate, int] | None:
        """The next candidate and the number of runs there; None if the place is known."""
        spent = sum(candidate.runs for candidate in self.candidates)
        if not places or spent >= self.runs:
            return None
        if not any(candidate.failed for candidate in usable):
            # Nothing to follow yet: newest first, as a bug that matters is most likely still there.
            return next(((untried, self.tries) for untried in reversed(usable) if not untried.runs), None)
        best = places[0]
        if best.chance >= self.confidence:
            for edge in (best.start - 1, best.start, best.stop - 1, best.stop):
                if 0 <= edge < len(usable) and not usable[edge].runs:
                    return usable[edge], max(1, self.tries // 2)
            return None
        index, runs, bits = next_look(places, len(usable))
        return (usable[index], runs) if bits >= _BITS_MIN else None

    def _range(self, usable: Sequence[Candidate], places: Sequence[Place]) -> Range:
        if not any(candidate.failed for candidate in usable):
            return Range()
        best = places[0]
        older = usable[best.start - 1].name if best.start else ""
        return Range(
            good=older,
            bad=usable[best.start].name,
            last_bad=usable[best.stop - 1].name,
            fixed=usable[best.stop].name if best.stop < len(usable) else "",
            before="" if older else self._oldest(usable[best.start]),
            chance=best.chance,
            rate=best.rate,
        )

    def _oldest(self, first: Candidate) -> str:
        skipped = [candidate for candidate in self.candidates[: self.candidates.index(first)] if candidate.skipped]
        if not skipped:
            return "as old as the range that was searched"
        return f"as old as the feature: {skipped[-1].name} cannot run the case ({skipped[-1].skipped})"

    def _told(self) -> str:
        """The posterior's top, for a person."""
        usable = self._usable()
        if not any(candidate.failed for candidate in usable):
            return ""
        shown = [
            f"{_stretch(usable, place)} {place.chance:.1%}"
            for place in self._places(usable)[:_PLACES_SHOWN]
            if place.chance >= 0.001
        ]
        return f"posterior of the failing stretch: {', '.join(shown)}"


def _stretch(usable: Sequence[Candidate], place: Place) -> str:
    return f"{usable[place.start].name}..{usable[place.stop - 1].name}"


def line(candidate: Candidate) -> str:
    """One candidate, for a person."""
    if candidate.skipped:
        return f"{candidate.name}: skipped: {candidate.skipped}"
    more = f", besides {', '.join(sorted(candidate.besides))}" if candidate.besides else ""
    status = "FAIL" if candidate.failed else "PASS"
    return f"{candidate.name}: {status}, failed {candidate.failed} of {candidate.runs} runs{more}"


def summary(located: Range, failure: object, kind: str) -> Iterator[str]:
    """The result of a bisection, for a person. failure: what was followed, in words. kind: release or commit."""
    if not located.bad:
        yield f"{failure} is in no {kind} of the range that can run the case"
        return
    yield f"last good {kind}: {located.good or f'none, {located.before}'}"
    yield f"first bad {kind}: {located.bad}"
    yield f"last bad {kind}: {located.last_bad}"
    yield f"first fixed {kind}: {located.fixed or 'none in the range'}"
    rate = "" if located.rate > 0.9 else f"; flaky: about {located.rate:.0%} of runs fail"
    yield f"{failure}, posterior {located.chance:.2%}{rate}"


def to_json(located: Range, failure: Mapping[str, str], candidates: Sequence[Candidate]) -> dict[str, object]:
    """All of it as plain dicts, lists, texts and numbers. failure: what was followed."""
    return {
        **failure,
        "last_good": located.good,
        "first_bad": located.bad,
        "last_bad": located.last_bad,
        "first_fixed": located.fixed,
        "as_old_as": located.before,
        "posterior": round(located.chance, 6),
        "failure_rate": round(located.rate, 4),
        "candidates": [
            {
                "name": candidate.name,
                "failed": candidate.failed,
                "runs": candidate.runs,
                "skipped": candidate.skipped,
                "besides": sorted(candidate.besides),
            }
            for candidate in candidates
        ],
    }
