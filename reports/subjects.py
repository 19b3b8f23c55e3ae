"""The subjects of a report, a row and a page each: fixes, stored seeds that prove none, findings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reports.events import WITHOUT, Event, Square, in_order, of_fix, of_subject, release_and_engine, squares
from reports.wording import bug_name, shortened
from repro.cases.case import Case, problems
from repro.cases.codec import BadSeed, Seed, dumps, loads, read
from repro.ledger.known import Issue, explained
from repro.ledger.read import History
from repro.ledger.rows import FINDING, SEED, FindingRow, FixRow
from repro.ledger.states import KNOWN, NEW
from repro.traces.campaign import CampaignFinding
from repro.traces.finding import Cell
from repro.upstream.fixes import SEEDS

_CELL = re.compile(r"step (\d+) (.+)\[(-?\d+),(-?\d+)\] is (.*), expected (.*)", re.DOTALL)
NAME_CHARS_MAX = 200

Measured = Mapping[str, Sequence[Event]]  # by subject, as reports.events.of_subject gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimal:
    """The smallest case known of a subject. case: None if there is no valid one (`unreadable` says why) or its seed
    file is missing. path: where that file was written."""

    case: Case | None = None
    cell: Cell | None = None
    text: str = ""
    path: str = ""
    unreadable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """anchor: its id on the page. kind: fix, seed or finding. about: what it is, in a line. oracle, fingerprint and
    detail are those of the failure, as far as they are known. squares: by target. events: its history, oldest first.
    stops: of a fix, the stops of its proofs. founds: of a finding, what campaigns wrote of it, the best first. same:
    subjects that fail with the same fingerprint, by their anchors and names."""

    anchor: str
    kind: str
    name: str
    about: str
    oracle: str
    fingerprint: str
    detail: str
    minimal: Minimal
    squares: Mapping[str, Square]
    events: tuple[Event, ...]
    stops: tuple[FixRow, ...] = ()
    founds: tuple[CampaignFinding, ...] = ()
    same: tuple[tuple[str, str], ...] = ()

    def targets(self, *states: str) -> list[str]:
        """The targets on which it is in one of these states."""
        return [target for target, square in self.squares.items() if square.state in states]

    @property
    def fails(self) -> bool:
        return any(square.fails for square in self.squares.values())


def subjects(history: History, issues: Sequence[Issue] = ()) -> tuple[Subject, ...]:
    """Fixes by their numbers, then the other seeds, then findings: those that fail first, by how many cases did so.

    issues: known upstream; a finding that one of them explains is not new, however often it was seen."""
    measured = of_subject(history)
    collected = [*_fixes(history, measured), *_seeds(history, measured), *_findings(history, measured, issues)]
    anchored = [_renamed(subject, number) for number, subject in enumerate(collected, 1)]
    return tuple(_with_same(subject, anchored) for subject in anchored)


def targets(history: History) -> list[str]:
    """Every target that anything was measured on; a release with a fix taken out is not a target."""
    named = {str(row.campaign.target) for row in history.campaigns} | {row.target for row in history.checks}
    named |= {row.target for row in history.findings} | {row.target for row in history.cases}
    return list(named | {row.target for row in history.fixes if row.role not in ("", WITHOUT)})


def range_of(subject: Subject, engine: str) -> str:
    """In words, from which release to which it fails, as measured: "fails up to 0.5.10.post1, fixed in 0.5.11"."""
    measured = [
        (release_and_engine(target)[0], square)
        for target, square in subject.squares.items()
        if release_and_engine(target)[1] == engine and (square.fails or square.state in ("passing", "fixed"))
    ]
    texts = []
    for fails, group in itertools.groupby(measured, key=lambda pair: pair[1].fails):
        releases = [release for release, _ in group]
        span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
        if fails:
            texts.append(f"fails on {span}")
        else:
            texts.append(f"passes on {span}" if not texts else f"fixed in {releases[0]}")
    return ", ".join(texts)


def _fixes(history: History, measured: Measured) -> list[Subject]:
    """A row for each runner and backend on which a fix is shown; engines are columns of it."""
    proofs: dict[tuple[int, str, str], list[FixRow]] = {}
    for row in map(_named, history.fixes):
        proofs.setdefault((row.number, row.runner, row.backend), []).append(row)
    collected = []
    for (number, runner, backend), rows in sorted(proofs.items()):
        seed = Path(rows[-1].seed).name
        checks = measured.get(f"{SEED}{seed}", [])
        events = [*(of_fix(row) for row in rows if row.role and row.target), *checks]
        collected.append(
            _subject(
                anchor=f"fix-{number}-{runner}-{backend}",
                kind="fix",
                name=f"#{number} {runner}, {backend}",
                about=rows[-1].title,
                oracle=rows[-1].oracle,
                fingerprint=_fingerprint(checks),
                minimal=_stored(seed),
                events=in_order(events, history.runs),
                stops=_latest_stops(rows),
            )
        )
    return collected


def _named(row: FixRow) -> FixRow:
    """A release without a fix is a folder; its name says enough, and where it lay on that host nothing."""
    release, engine = release_and_engine(row.target)
    if row.role != WITHOUT or "/" not in release:
        return row
    name = f"{Path(release).name}/{engine}"
    return replace(row, target=name, detail=row.detail.replace(row.target, name))


def _latest_stops(rows: Sequence[FixRow]) -> tuple[FixRow, ...]:
    """The stops of each engine's last run; the last one of a role that was met twice there."""
    runs = {row.engine: row.run for row in rows}
    return tuple({(row.engine, row.role): row for row in rows if row.run == runs[row.engine]}.values())


def _seeds(history: History, measured: Measured) -> list[Subject]:
    proving = {f"{SEED}{Path(row.seed).name}" for row in history.fixes}
    collected = []
    for subject, events in measured.items():
        if subject.startswith(FINDING) or subject in proving:
            continue
        seed = subject.removeprefix(SEED)
        failing = [event.row for event in events if event.row.oracle]
        about = failing[-1] if failing else None
        collected.append(
            _subject(
                anchor=f"seed-{seed}",
                kind="seed",
                name=Path(seed).name,
                about=bug_name(about.oracle, about.where) if about else _what(seed),
                oracle=about.oracle if about else "",
                fingerprint=_fingerprint(events),
                minimal=_stored(seed),
                events=events,
            )
        )
    return collected


def _findings(history: History, measured: Measured, issues: Sequence[Issue]) -> list[Subject]:
    kinds: dict[str, list[FindingRow]] = {}
    for row in history.findings:
        kinds.setdefault(row.fingerprint, []).append(row)
    collected = []
    for fingerprint, rows in kinds.items():
        founds = [
            finding
            for row in history.campaigns
            for finding in row.campaign.findings
            if finding.fingerprint == fingerprint
        ]
        founds.sort(key=lambda finding: (finding.failed == 0, _size(finding.case)))
        best = min(rows, key=lambda row: (row.failed == 0, len(row.seed_text)))
        collected.append(
            _explained(
                issues,
                anchor=f"finding-{fingerprint}",
                kind="finding",
                name=f"{best.runner}/{best.backend} {bug_name(best.oracle, best.where)}",
                about="",
                oracle=best.oracle,
                fingerprint=fingerprint,
                detail=founds[0].detail if founds else best.detail,
                minimal=_found(founds[0]) if founds else _told(best),
                events=measured.get(f"{FINDING}{fingerprint}", []),
                founds=tuple(founds),
            )
        )
    cases = {
        f"finding-{key}": sum(finding.cases for finding in made_of.founds)
        for key, made_of in zip(kinds, collected, strict=True)
    }
    return sorted(collected, key=lambda subject: (not subject.fails, -cases[subject.anchor], subject.name))


def _subject(*, events: Sequence[Event], detail: str = "", **parts: Any) -> Subject:
    return Subject(events=tuple(events), squares=squares(events), detail=detail, **parts)


def _explained(issues: Sequence[Issue], **parts: Any) -> Subject:
    """A finding, of which it is said where known issues explain it."""
    subject = _subject(**parts)
    case = subject.minimal.case
    if case is None:
        return subject
    explanations = {}
    for target, square in subject.squares.items():
        release, engine = release_and_engine(target)
        issue = explained(issues, release, engine, case.setup, subject.oracle, subject.fingerprint)
        if issue and square.fails:
            square = replace(square, issue=str(issue), state=KNOWN if square.state == NEW else square.state)
        explanations[target] = square
    return replace(subject, squares=explanations)


def _fingerprint(events: Sequence[Event]) -> str:
    """That of the last failure."""
    rows = [event.row for event in reversed(events)]
    return next((row.fingerprint for row in rows if row.status == "FAIL" and row.fingerprint), "")


def _size(case: Case) -> tuple[int, int]:
    return len(case.steps), sum(len(step.requests) for step in case.steps)


def _stored(seed: str) -> Minimal:
    """The case of a stored seed, if the seed is in repro/seeds."""
    path = SEEDS / Path(seed).name
    if not path.is_file():
        return Minimal(path=seed)
    try:
        text = path.read_text(encoding="utf-8")
        read = loads(text)
    except (OSError, ValueError) as error:
        return Minimal(path=seed, unreadable=str(error))
    return Minimal(
        case=read.case, cell=_cell(str(read.about.get("cell", ""))), text=text, path=f"repro/seeds/{path.name}"
    )


def _what(seed: str) -> str:
    """The bug that a stored seed says it shows."""
    path = SEEDS / Path(seed).name
    try:
        return str(read(path).about.get("fix", "")) if path.is_file() else ""
    except (OSError, BadSeed):
        return ""


def _found(finding: CampaignFinding) -> Minimal:
    bad = problems(finding.case)
    if bad:
        return Minimal(cell=finding.cell, path=finding.seed, unreadable="; ".join(bad))
    return Minimal(case=finding.case, cell=finding.cell, text=dumps(Seed(case=finding.case)), path=finding.seed)


def _told(row: FindingRow) -> Minimal:
    try:
        return Minimal(case=loads(row.seed_text).case, cell=row.cell, text=row.seed_text)
    except BadSeed as error:
        return Minimal(cell=row.cell, text=row.seed_text, unreadable=str(error))


def _cell(text: str) -> Cell | None:
    """A cell out of its words, as a seed file has it."""
    match = _CELL.fullmatch(text)
    if not match:
        return None
    step, buffer, row, column, got, want = match.groups()
    return Cell(step=int(step), buffer=buffer, row=int(row), column=int(column), got=got, want=want)


def _renamed(subject: Subject, number: int) -> Subject:
    """Anchors make links that last from report to report; an odd one gets a number instead."""
    plain = re.fullmatch(r"[A-Za-z0-9_.-]+", subject.anchor)
    return replace(
        subject,
        anchor=subject.anchor if plain else f"{subject.kind}--{number}",
        name=shortened(subject.name, NAME_CHARS_MAX),
    )


def _with_same(subject: Subject, others: Sequence[Subject]) -> Subject:
    same = tuple(
        (other.anchor, other.name)
        for other in others
        if other.fingerprint and other.fingerprint == subject.fingerprint and other.anchor != subject.anchor
    )
    return replace(subject, same=same)
