"""The runs by date, and the bugs by age: what a team looks at in the morning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from reports.cards import Card
from reports.wording import duration
from repro.ledger.read import History
from repro.ledger.rows import CheckRow
from repro.ledger.states import measurements
from repro.traces.campaign import Campaign

NIGHTS_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One run. came: failures that were not there when the target was measured last, or never measured before; gone:
    those that pass now. states: that no earlier case had. alarms: findings that no fresh process showed, in 1,000
    judged cases. first: how long until the first finding. targets: all that it measured."""

    day: str
    kind: str
    targets: tuple[str, ...]
    judged: int
    came: int
    gone: int
    states: int
    alarms: str
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A cause that fails, by the day on which it was first seen. days: from then to the latest run."""

    card: Card
    seen: str
    latest: str
    days: int
    search: str


def nights(history: History) -> tuple[Night, ...]:
    """All runs that measured something, latest first."""
    checks: dict[str, list[CheckRow]] = {}
    for row in measurements(history):
        checks.setdefault(row.run, []).append(row)
    campaigns: dict[str, list[Campaign]] = {}
    for entry in history.campaigns:
        campaigns.setdefault(entry.run, []).append(entry.campaign)
    last: dict[tuple[str, str], str] = {}
    seen: set[tuple[str, str, str]] = set()
    collected = []
    for run in sorted(history.runs, key=lambda run: run.started):
        came = gone = 0
        for row in checks.get(run.id, ()):
            if row.status in ("PASS", "FAIL"):
                before = last.get((row.subject, row.target), "PASS")
                came += row.status == "FAIL" and before == "PASS"
                gone += row.status == "PASS" and before == "FAIL"
                last[row.subject, row.target] = row.status
        campaigns_here = campaigns.get(run.id, ())
        states = {
            (campaign.runner, campaign.backend, state) for campaign in campaigns_here for state in campaign.states
        }
        if campaigns_here or run.id in checks:
            targets = dict.fromkeys(
                [*(row.target for row in checks.get(run.id, ())), *(str(c.target) for c in campaigns_here)]
            )
            collected.append(
                _night(run.started[:10], run.kind, tuple(targets), campaigns_here, (came, gone, len(states - seen)))
            )
        seen |= states
    return tuple(reversed(collected[-NIGHTS_MAX:]))


def _night(
    day: str, kind: str, targets: tuple[str, ...], campaigns: Sequence[Campaign], counts: tuple[int, int, int]
) -> Night:
    judged = sum(campaign.judged for campaign in campaigns)
    findings = [finding for campaign in campaigns for finding in campaign.findings]
    false = sum(finding.tried > 0 and not finding.failed for finding in findings)
    came, gone, states = counts
    return Night(
        day=day,
        kind=kind,
        targets=targets,
        judged=judged,
        came=came,
        gone=gone,
        states=states,
        alarms=f"{1000 * false / judged:.2g}" if judged else "-",
        first=duration(min(finding.at_seconds for finding in findings)) if findings else "-",
    )


def bugs(cards: Sequence[Card], history: History) -> tuple[Bug, ...]:
    """Oldest first."""
    latest = max((run.started[:10] for run in history.runs), default="")
    collected = []
    for card in cards:
        events = [event.row for subject in card.subjects for event in subject.events]
        days = [row.at[:10] for row in events if row.status == "FAIL"]
        times = [finding.at_seconds for subject in card.subjects for finding in subject.founds]
        begin, end = min(days, default=""), max(days, default="")
        search = duration(min(times)) if times else "-"
        collected.append(Bug(card=card, seen=begin, latest=end, days=_days(begin, latest), search=search))
    return tuple(sorted(collected, key=lambda bug: bug.seen or "9"))


def _days(begin: str, end: str) -> int:
    """The days between two dates; 0 if one is missing."""
    try:
        return max(0, (date.fromisoformat(end) - date.fromisoformat(begin)).days)
    except ValueError:
        return 0
