"""Findings and states that no case had before, over all campaigns: how fast something new still comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from reports.wording import counted
from repro.traces.campaign import Campaign

WIDTH, HEIGHT, EDGE = 420, 160, 8  # in SVG units; the figures stand beside the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Something that was new. cases: run before it, over all campaigns. at: when it came."""

    name: str
    cases: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A stair over cases or time. line: as SVG wants it. rises: where it goes up, and what for. first, last: the ends
    of its axis in words. text: the same for those who do not see it."""

    title: str
    line: str
    rises: tuple[tuple[float, float, str], ...]
    total: int
    first: str
    last: str
    text: str


def charts(campaigns: Sequence[Campaign]) -> tuple[Chart, ...]:
    """Findings, then states; each over cases and over time. Without a campaign there is none."""
    dated = [campaign for campaign in campaigns if campaign.cases and _is_moment(campaign.started)]
    ordered = sorted(dated, key=lambda campaign: _when(campaign.started))
    if not ordered:
        return ()
    whole = sum(campaign.cases for campaign in ordered)
    begin, end = _when(ordered[0].started), max(_when(c.started) + timedelta(seconds=c.seconds) for c in ordered)
    collected = []
    for what, rises in (("finding", _findings(ordered)), ("state", _states(ordered))):
        every = list(rises)
        cases = [(rise.cases / whole, rise.name) for rise in every]
        span = (end - begin).total_seconds() or 1.0
        times = [((rise.at - begin).total_seconds() / span, rise.name) for rise in every]
        total, last = counted(len(every), what), counted(whole, "case")
        collected.append(_chart(f"New {what}s over cases", cases, "0", last, f"{total} in {last}"))
        days = [f"{moment:%Y-%m-%d %H:%M}" for moment in (begin, end)]
        collected.append(
            _chart(f"New {what}s over time", times, days[0], days[1], f"{total} from {days[0]} to {days[1]}")
        )
    return tuple(collected)


def _findings(campaigns: Sequence[Campaign]) -> Iterator[Rise]:
    seen: set[str] = set()
    before = 0
    for campaign in campaigns:
        for finding in sorted(campaign.findings, key=lambda finding: finding.at_case):
            if finding.fingerprint not in seen:
                seen.add(finding.fingerprint)
                at = _when(campaign.started) + timedelta(seconds=finding.at_seconds)
                name = f"{finding.oracle} on {finding.target}"
                yield Rise(name=name, cases=before + min(finding.at_case, campaign.cases), at=at)
        before += campaign.cases


def _states(campaigns: Sequence[Campaign]) -> Iterator[Rise]:
    """A campaign stores how many cases had a state, not which was the first: it counts at the campaign's end."""
    seen: set[tuple[str, str, str]] = set()
    before = 0
    for campaign in campaigns:
        before += campaign.cases
        end = _when(campaign.started) + timedelta(seconds=campaign.seconds)
        for state in campaign.states:
            if (place := (campaign.runner, campaign.backend, state)) not in seen:
                seen.add(place)
                yield Rise(name=f"{state} ({campaign.runner}, {campaign.backend})", cases=before, at=end)


def _chart(title: str, rises: Sequence[tuple[float, str]], first: str, last: str, text: str) -> Chart:
    """rises: parts of the axis from 0 to 1, and what came there."""
    total = len(rises)
    names: dict[float, list[str]] = {}
    for part, name in sorted(rises):
        names.setdefault(round(200 * min(1.0, max(0.0, part))) / 200, []).append(name)
    height, steps, corners, count = HEIGHT - 2 * EDGE, [], [(float(EDGE), float(HEIGHT - EDGE))], 0
    for part, new in names.items():
        count += len(new)
        x, y = round(EDGE + part * (WIDTH - 2 * EDGE), 1), round(HEIGHT - EDGE - height * count / total, 1)
        corners += [(x, corners[-1][1]), (x, y)]
        more = f" and {len(new) - 3} more" if len(new) > 3 else ""
        steps.append((x, y, f"{count:,}: {', '.join(new[:3])}{more}"))
    corners.append((float(WIDTH - EDGE), corners[-1][1]))
    latest = f"; the last new one after {100 * max(part for part, _ in rises):.0f} % of it" if rises else ""
    return Chart(
        title=title,
        line=" ".join(f"{x:g},{y:g}" for x, y in corners),
        rises=tuple(steps),
        total=total,
        first=first,
        last=last,
        text=f"{text}{latest}",
    )


def _when(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_moment(text: str) -> bool:
    try:
        _when(text)
    except ValueError:  # of a record that somebody else wrote
        return False
    return True
