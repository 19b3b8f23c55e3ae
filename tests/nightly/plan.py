"""The plan of a nightly run: how long its jobs take, and how long a campaign may be so that all pairs have one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from repro.ledger.read import History

# Seconds of a job where the ledger has none of its kind; of a campaign those before its first case; of one that notes
# lines all.
CHECK_S, FIX_S, OPENING_S, LINES_S = 15.0, 60.0, 30.0, 90.0
# The shortest campaign that is worth its opening.
MINUTES_MIN = 0.1
_CHECKS, _FIX, _CAMPAIGN, _LINES = ("test_seed", "test_finding"), "test_fix", "test_campaign", "test_lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a stored seed or finding on a target, and of a fix on an engine. measured: whether the ledger had
    any."""

    check: float = CHECK_S
    fix: float = FIX_S
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """jobs: by kind. workers: processes side by side. minutes: of each campaign. seconds: of the whole run, as far as
    can be known before. fits: whether each pair has its campaign within the limit, if there is one."""

    checks: int
    fixes: int
    campaigns: int
    workers: int
    minutes: float
    seconds: float
    costs: Costs
    limit: float | None = None
    fits: bool = True

    def lines(self) -> list[str]:
        """The plan for a person."""
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        source = "as earlier runs took" if self.costs.measured else "guessed, as the ledger has no earlier run"
        lines = [
            f"about {_duration(self.seconds)} with {workers}: {_count(self.campaigns, 'campaign')} of "
            f"{self.minutes:.3g} minutes, {_count(self.checks, 'stored case')} of {self.costs.check:.0f} s and "
            f"{_count(self.fixes, 'fix', 'fixes')} of {self.costs.fix:.0f} s, {source}"
        ]
        if self.limit is not None and not self.fits:
            lines.append(f"{self.limit:g} minutes are too few for a campaign of each pair: the last ones do not begin")
        elif self.limit is not None and self.seconds > 60 * self.limit:
            lines.append(f"after {self.limit:g} minutes no job begins: campaigns come first, then stored cases, fixes")
        return lines


def costs(history: History) -> Costs:
    """The costs that this ledger has measured: medians, as a machine may be busy for a night."""
    checks = [row.seconds for row in history.checks if row.tried]
    fixes: dict[tuple[str, int, str], float] = {}
    for row in history.fixes:
        proof = (row.run, row.number, row.engine)
        fixes[proof] = fixes.get(proof, 0.0) + row.seconds
    proofs = [seconds for seconds in fixes.values() if seconds]
    return Costs(
        check=median(checks) if checks else CHECK_S,
        fix=median(proofs) if proofs else FIX_S,
        measured=bool(checks or proofs),
    )


def plan(ids: Iterable[str], workers: int, each: Costs, minutes: float, limit: float | None = None) -> Plan:
    """ids: of the tests that are to be run. minutes: of each campaign, at most. limit: minutes of the whole run. Of
    these, the other jobs are left half at most, as campaigns are what finds a new bug."""
    kinds = Counter(name.partition("::")[2].partition("[")[0] for name in ids)
    checks, fixes, campaigns = sum(kinds[name] for name in _CHECKS), kinds[_FIX], kinds[_CAMPAIGN]
    rest = (checks * each.check + fixes * each.fix + kinds[_LINES] * LINES_S) / workers
    rounds = -(-campaigns // workers)  # campaigns that a worker has one after the other
    fits = True
    if limit is not None and campaigns:
        whole = 60 * limit
        room = (whole - min(rest, whole / 2)) / rounds - OPENING_S
        fits = room >= 60 * MINUTES_MIN
        minutes = max(MINUTES_MIN, min(minutes, room / 60))
    return Plan(
        checks=checks,
        fixes=fixes,
        campaigns=campaigns,
        workers=workers,
        minutes=minutes,
        seconds=rest + rounds * (60 * minutes + OPENING_S),
        costs=each,
        limit=limit,
        fits=fits,
    )


def is_campaign(name: str) -> bool:
    """True if the test of this id is one."""
    return f"::{_CAMPAIGN}[" in name


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 120:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
