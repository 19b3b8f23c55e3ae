"""Failures, a card a cause: the report leads with them. Those that one known issue explains are one cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.subjects import Subject, range_of
from reports.wording import replay_command
from repro.ledger.known import Issue
from repro.upstream.findings import THREADS, PublishedBug, of_seed

# The cards that want attention come first.
ORDER = ("regressed", "new", "flaky", "known")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """state: the gravest of its failures. sentence: what is wrong. symptom, impact, cause: of a published bug, else
    empty. ranges: where it fails, by engine. cell: the first wrong place. command: replays its smallest case. links:
    names and addresses upstream. subjects: the failures that are put down to it."""

    state: str
    sentence: str
    symptom: str
    impact: str
    cause: str
    ranges: tuple[str, ...]
    cell: str
    command: str
    links: tuple[tuple[str, str], ...]
    subjects: tuple[Subject, ...]


def cards(subjects: Sequence[Subject], issues: Sequence[Issue], bugs: Sequence[PublishedBug]) -> list[Card]:
    """The causes of all failures, the gravest first."""
    causes: dict[str, list[Subject]] = {}
    for subject in subjects:
        if subject.fails:
            issue = next((square.issue for square in subject.squares.values() if square.issue), "")
            causes.setdefault(issue or subject.fingerprint or subject.anchor, []).append(subject)
    titles = {issue.title: issue for issue in issues}
    collected = [_card(group, titles.get(name), bugs) for name, group in causes.items()]
    return sorted(collected, key=lambda card: ORDER.index(card.state))


def _card(group: Sequence[Subject], issue: Issue | None, bugs: Sequence[PublishedBug]) -> Card:
    # A campaign's finding has what was seen; a seed may have no more than its name.
    first = min(group, key=lambda subject: (subject.kind != "finding", not subject.minimal.path))
    seeds = [probe.removeprefix("seed:") for probe in (issue.probes if issue else ()) if probe.startswith("seed:")]
    names = [*seeds, *(subject.name for subject in group if subject.kind == "seed")]
    bug = next(filter(None, (of_seed(bugs, name) for name in names)), None)
    squares = [square for subject in group for square in subject.squares.values() if square.fails]
    engines = dict.fromkeys(square.target.rpartition("@" if "@" in square.target else "/")[2] for square in squares)
    ranges = [f"{engine}: {text}" for engine in engines if (text := range_of(first, engine))]
    path = first.minimal.path
    return Card(
        state=min((square.state for square in squares), key=ORDER.index),
        sentence=bug.title if bug else issue.title if issue else first.detail or first.name,
        symptom=bug.symptom if bug else "",
        impact=bug.impact if bug else "",
        cause=bug.cause if bug else "",
        ranges=tuple(ranges),
        cell=str(first.minimal.cell or ""),
        command=replay_command(path, next(iter(first.targets(*ORDER)))) if path and first.fails else "",
        links=tuple(_links(issue, bug)),
        subjects=tuple(group),
    )


def _links(issue: Issue | None, bug: PublishedBug | None) -> Iterable[tuple[str, str]]:
    if bug:
        if bug.upstream.fixed_by:
            yield f"fixed by #{bug.upstream.fixed_by}", f"{THREADS}{bug.upstream.fixed_by}"
        for thread in bug.upstream.threads:
            yield thread, THREADS + thread.partition(" ")[0].removeprefix("#")
    elif issue and issue.link.startswith("https://"):
        yield issue.link.removeprefix("https://"), issue.link
