"""Failures, a card a cause: the report leads with them. Those that one known issue explains are one cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import picture
from reports.events import release_and_engine, target_order
from reports.subjects import Subject, range_of
from reports.wording import replay_command
from repro.cases.release_list import ADAPTED
from repro.ledger.known import Issue
from repro.upstream.findings import SOURCES, THREADS, PublishedBug, of_seed
from repro.upstream.patch_table import CANDIDATE_PATCHES, CandidatePatch

# The cards that want attention come first.
ORDER = ("regressed", "new", "flaky", "known")
# A line as traces write it, and as the cause of a published bug does: a file, then a line for each release.
_SEEN = re.compile(r"(sglang/[\w./-]+\.py):([1-9]\d*)")
_STATED = re.compile(r"\b(\w+\.py), ((?:[\w.]+:\d+(?:, )?)+)")
# The files that candidate patches change, by their names.
_FILES = {edit.file.rpartition("/")[2]: edit.file for patch in CANDIDATE_PATCHES for edit in patch.edits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """state: the gravest of its failures. sentence: what is wrong. symptom, impact, cause: of a published bug, else
    empty. ranges: where it fails, by engine. cell: the first wrong place. panels: its step, drawn. lines: of sglang,
    with their addresses. command: replays its smallest case. patch: a candidate, as lines that go and come. links:
    names and addresses upstream. owner: who looks after it, as the known issue says. subjects: the failures that are
    put down to it."""

    state: str
    sentence: str
    symptom: str
    impact: str
    cause: str
    ranges: tuple[str, ...]
    cell: str
    panels: tuple[picture.Panel, ...]
    lines: tuple[tuple[str, str], ...]
    command: str
    patch: str
    links: tuple[tuple[str, str], ...]
    owner: str
    subjects: tuple[Subject, ...]


def cards(subjects: Sequence[Subject], issues: Sequence[Issue], bugs: Sequence[PublishedBug]) -> list[Card]:
    """The causes of all failures, the gravest first."""
    causes: dict[str, list[Subject]] = {}
    for subject in subjects:
        if subject.fails:
            issue = next((square.issue for square in subject.squares.values() if square.issue), "")
            causes.setdefault(issue or subject.fingerprint or subject.anchor, []).append(subject)
    texts = {str(issue): issue for issue in issues}
    collected = [_card(group, texts.get(name), bugs) for name, group in causes.items()]
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
    minimal, path = first.minimal, first.minimal.path
    patch = next((patch for patch in CANDIDATE_PATCHES if f"{patch.seed}.json" in names or patch.seed in names), None)
    return Card(
        state=min((square.state for square in squares), key=ORDER.index),
        sentence=bug.title if bug else issue.title if issue else _first_sentence(first.detail) or first.name,
        symptom=bug.symptom if bug else "",
        impact=bug.impact if bug else "",
        cause=bug.cause if bug else "",
        ranges=tuple(ranges),
        cell=str(minimal.cell or ""),
        panels=picture.draw(minimal.case, minimal.cell, picture.owner(first.oracle))[-1:] if minimal.case else (),
        lines=tuple(_lines(group, bug, patch)),
        command=replay_command(path, max(first.targets(*ORDER), key=target_order)) if path and first.fails else "",
        patch=_changes(patch) if patch else "",
        links=tuple(_links(issue, bug)),
        owner=issue.owner if issue else "",
        subjects=tuple(group),
    )


def _first_sentence(text: str) -> str:
    """Behind it a detail says which line wrote the value, which is a part of the card of its own."""
    return re.split(r"(?<=\.)\s(?=[A-Z])", text, maxsplit=1)[0]


def _lines(
    group: Sequence[Subject], bug: PublishedBug | None, patch: CandidatePatch | None
) -> Iterable[tuple[str, str]]:
    """The lines of sglang that the failures name, or that the table has: on the newest release of each that fails."""
    seen: dict[str, str] = {}
    for subject in group:
        for target, square in subject.squares.items():
            if square.fails and (match := _SEEN.search(subject.detail)):
                seen[match[0]] = _address(release_and_engine(target)[0], match[1], match[2])
    if seen or not bug:
        return seen.items()
    files = _FILES | {edit.file.rpartition("/")[2]: edit.file for edit in (patch.edits if patch else ())}
    failing = {release_and_engine(target)[0] for each in group for target, s in each.squares.items() if s.fails}
    for name, places in _STATED.findall(bug.cause):
        stated = [place.rpartition(":")[::2] for place in reversed(places.strip(", ").split(", "))]
        release, line = next((place for place in stated if place[0] in failing), stated[0])
        file = files.get(name, "")
        seen[f"{file or name}:{line} in {release}"] = _address(release, file, line) if file else ""
    sources = f"{SOURCES}v{patch.release}/python/" if patch else ""
    places = {f"{edit.file}, in {edit.function}": sources + edit.file for edit in (patch.edits if patch else ())}
    return (seen or places).items()


def _address(release: str, file: str, line: str) -> str:
    """Empty for a checkout, whose lines are nowhere."""
    return f"{SOURCES}v{release}/python/{file}#L{line}" if release in ADAPTED else ""


def _changes(patch: CandidatePatch) -> str:
    """The edits as lines that go and lines that come, below the function they are in."""
    lines = [f"# for {patch.release}: {patch.why}"]
    for edit in patch.edits:
        lines.append(f"@@ {edit.file}, {edit.function}")
        for sign, text in (("-", edit.old), ("+", edit.new)):
            lines += [f"{sign} {line}" for line in text.strip("\n").splitlines()]
    return "\n".join(lines)


def _links(issue: Issue | None, bug: PublishedBug | None) -> Iterable[tuple[str, str]]:
    if bug:
        if bug.upstream.fixed_by:
            yield f"fixed by #{bug.upstream.fixed_by}", f"{THREADS}{bug.upstream.fixed_by}"
        for thread in bug.upstream.threads:
            yield thread, THREADS + thread.partition(" ")[0].removeprefix("#")
    elif issue and issue.link.startswith("https://"):
        yield issue.link.removeprefix("https://"), issue.link
