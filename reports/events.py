"""Every measurement of a subject (a fix, a stored seed, a finding) on a target, in one form, and what they come to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from repro.cases.releases import release_order
from repro.ledger.read import History
from repro.ledger.rows import STATUSES, UNSUPPORTED, CheckRow, FixRow, Run
from repro.ledger.states import CANNOT_RUN, measurements, state_of

# Beside the words of repro.ledger.states, what a square can say.
UNCONFIRMED = "unconfirmed"  # a campaign saw it, and no fresh process did
UNKNOWN = "unknown"  # it ran and could not be judged, or failed in another way
NOT_RUN = "not run"
CAMPAIGN = "campaign"  # the source of what a campaign saw itself
WITHOUT = "without"  # the stop of a proof on a release from which the fix was taken out: no release of sglang
_NUMBER = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?")
FAILING = ("new", "known", "regressed", "flaky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One measurement. source: what made it (campaign, replay, or a stop of a proof). row: what was measured."""

    source: str
    row: CheckRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """The state of a subject on a target.

    state: a word of repro.ledger.states or one of the above. failed of tried: runs of the last measurement that
    counted them. rate: the share of the last runs that failed. since, first, last: runs by their ids: when the state
    began, when it first failed and last failed, or, where it never failed, when it was first and last measured.
    why: the reason, where there is one. source: what measured it last. issue: the known issue that explains it.
    """

    target: str
    state: str = NOT_RUN
    failed: int = 0
    tried: int = 0
    rate: float = 0.0
    since: str = ""
    first: str = ""
    last: str = ""
    why: str = ""
    source: str = ""
    issue: str = ""

    @property
    def fails(self) -> bool:
        return self.state in FAILING

    @property
    def runs(self) -> str:
        """k of n, in short; empty where there is nothing to count."""
        return f"{self.failed}/{self.tried}" if self.tried else ""


def release_and_engine(target: str) -> tuple[str, str]:
    """The two parts of a target in its text form, whatever that text is."""
    release, _, engine = target.rpartition("@" if "@" in target else "/")
    return release, engine


def target_order(target: str) -> tuple[object, ...]:
    """A sort key: releases in their order, and checkouts after them."""
    release, engine = release_and_engine(target)
    # A release that was changed goes by its own name with the change behind it.
    number = _NUMBER.match(release)
    return (number is None, release_order(number[0] if number else "0"), release, engine)


def of_subject(history: History) -> Mapping[str, list[Event]]:
    """All that was measured of stored seeds and findings, by subject, oldest first."""
    replayed = set(map(id, history.checks))
    by_target: dict[str, list[Event]] = {}
    for row in measurements(history):
        source = "replay" if id(row) in replayed else CAMPAIGN
        by_target.setdefault(row.subject, []).append(Event(source=source, row=row))
    return by_target


def of_fix(row: FixRow) -> Event:
    """One stop of a proof."""
    return Event(
        source=f"proof: {row.role} release" if row.role != WITHOUT else "proof: without the fix",
        row=CheckRow(
            run=row.run,
            target=row.target,
            subject=f"fix:{row.number}",
            runner=row.runner,
            status=row.status if row.status in STATUSES else UNSUPPORTED,
            expected=row.expected,
            oracle=row.oracle,
            reason=row.problem or row.detail,
            seconds=row.seconds,
            at=row.at,
        ),
    )


def in_order(events: Iterable[Event], runs: Sequence[Run]) -> list[Event]:
    """Oldest first; what has no time of its own has that of its run."""
    started = {run.id: run.started for run in runs}
    return sorted(events, key=lambda event: (event.row.at or started.get(event.row.run, ""), event.row.target))


def squares(events: Sequence[Event]) -> Mapping[str, Square]:
    """One for each target that anything was measured on. events: of one subject, oldest first."""
    by_target: dict[str, list[Event]] = {}
    for event in events:
        if event.source != "proof: without the fix":
            by_target.setdefault(event.row.target, []).append(event)
    return {target: _square(by_target[target]) for target in sorted(by_target, key=target_order)}


def _square(events: Sequence[Event]) -> Square:
    state = state_of([event.row for event in events])
    measured = [event for event in events if event.row.run == state.measured] or list(events)
    last, latest = measured[-1], events[-1].row
    # A stop of a proof does not say how many runs it took; what was counted before it does.
    counted = [event.row for event in events if event.row.tried and event.row.status == last.row.status]
    runs = counted[-1] if counted else last.row
    word = state.state
    if word == CANNOT_RUN and latest.status == "UNKNOWN":
        word = UNCONFIRMED if events[-1].source == CAMPAIGN else UNKNOWN
    return Square(
        target=state.target,
        state=word,
        failed=runs.failed,
        tried=runs.tried,
        rate=state.rate,
        since=state.since,
        first=state.first_seen or events[0].row.run,
        last=state.last_seen or latest.run,
        why=state.why or last.row.reason,
        source=last.source,
    )
