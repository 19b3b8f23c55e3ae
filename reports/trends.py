"""Campaigns from run to run: throughput, false alarms, cases that could not be judged, by kind of campaign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.wording import per_second, share
from repro.ledger.read import History
from repro.traces.campaign import Campaign

# Of a small picture in a table, in CSS pixels.
WIDTH, HEIGHT, EDGE = 168, 40, 5
POINTS_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run's value. label: what it is drawn from, in words. x, y: where it is drawn."""

    label: str
    value: float
    text: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One figure over runs, oldest first. least and most: in words, as the picture's lower and upper edge."""

    name: str
    points: tuple[Point, ...]
    least: str
    most: str

    @property
    def line(self) -> str:
        """The points as SVG wants them."""
        return " ".join(f"{point.x:g},{point.y:g}" for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Campaigns that may be compared: of one runner, backend and engine."""

    name: str
    engine: str
    runs: int
    cases: int
    trends: tuple[Trend, ...]


def trends(history: History) -> tuple[Series, ...]:
    """For each kind of campaign its figures, a point for each run that has one."""
    kinds: dict[tuple[str, str, str], dict[str, list[Campaign]]] = {}
    for row in history.campaigns:
        campaign = row.campaign
        by_run = kinds.setdefault((campaign.runner, campaign.backend, campaign.target.engine), {})
        by_run.setdefault(row.run, []).append(campaign)
    started = {run.id: run.started for run in history.runs}
    collected = []
    for (runner, backend, engine), by_run in sorted(kinds.items()):
        runs = sorted(by_run, key=lambda run: started.get(run, ""))[-POINTS_MAX:]
        labels = [started.get(run, "")[:16].replace("T", " ") for run in runs]
        campaigns = [by_run[run] for run in runs]
        collected.append(
            Series(
                name=f"{runner}, {backend}",
                engine=engine,
                runs=len(runs),
                cases=sum(campaign.cases for ones in campaigns for campaign in ones),
                trends=(
                    _trend("cases a second", labels, campaigns, _rate, per_second),
                    _trend("false alarms in 1,000 judged cases", labels, campaigns, _alarms, "{:.2g}".format),
                    _trend("share not judged", labels, campaigns, _unjudged, lambda value: share(value, 1)),
                ),
            )
        )
    return tuple(collected)


def _rate(campaigns: Sequence[Campaign]) -> float | None:
    seconds = sum(campaign.seconds for campaign in campaigns)
    return sum(campaign.cases for campaign in campaigns) / seconds if seconds else None


def _alarms(campaigns: Sequence[Campaign]) -> float | None:
    """Findings that failed in none of several fresh processes, over judged cases."""
    judged = sum(campaign.judged for campaign in campaigns)
    false = sum(finding.tried > 0 and not finding.failed for campaign in campaigns for finding in campaign.findings)
    return 1000 * false / judged if judged else None


def _unjudged(campaigns: Sequence[Campaign]) -> float | None:
    cases = sum(campaign.cases for campaign in campaigns)
    return (cases - sum(campaign.judged for campaign in campaigns)) / cases if cases else None


def _trend(
    name: str,
    labels: Sequence[str],
    campaigns: Sequence[Sequence[Campaign]],
    figure: Callable[[Sequence[Campaign]], float | None],
    words: Callable[[float], str],
) -> Trend:
    values = [
        (label, value) for label, ones in zip(labels, campaigns, strict=True) if (value := figure(ones)) is not None
    ]
    most = max((value for _, value in values), default=0.0)
    step = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)
    points = tuple(
        Point(
            label=label,
            value=value,
            text=words(value),
            # Zero is the lower edge: a picture that begins elsewhere makes noise look like a change.
            x=round(EDGE + place * step if len(values) > 1 else WIDTH / 2, 1),
            y=round(HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (value / most if most else 0.0), 1),
        )
        for place, (label, value) in enumerate(values)
    )
    least = min((value for _, value in values), default=0.0)
    return Trend(name=name, points=points, least=words(least), most=words(most))
