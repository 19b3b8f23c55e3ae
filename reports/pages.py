"""A page for each subject: what reports/subject.html shows of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reports import picture
from reports.events import UNCONFIRMED, UNKNOWN, Event, Square, release_and_engine, target_order
from reports.subjects import Subject, range_of
from reports.wording import counted, listed, replay_command, share
from repro.cases.case import Case
from repro.cases.words import options
from repro.ledger.states import CANNOT_RUN, FIXED, FLAKY, PASSING
from repro.traces.campaign import CampaignFinding
from repro.traces.excerpt import Excerpt

# The oracle that compares outputs: whole numbers that differ are what it fails by.
_COMPARES_OUTPUTS = "graph_equals_eager"
_WHOLE = re.compile(r"-?\d+|True|False")
EVENTS_MAX = 40  # of a subject's history; the ledger has all of it

Grid = dict[str, dict[str, Square]]  # by engine and release
Values = tuple[tuple[str, bool], ...]  # a value, and whether it was judged wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One row of an array as both paths left it, each value with whether it was judged wrong. differ: how many of the
    values shown differ, within what is allowed or not."""

    name: str
    graph: Values
    eager: Values
    differ: int
    cut_before: bool
    cut_after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """before and after: the anchors of its neighbours. excerpts_of: the subject whose they are, if it is another one.
    grid: its squares by engine and release. events: latest first; earlier: how many are left out. ranges: by engine,
    from where to where it fails. notes: a state that needs a word, on which targets, and the word."""

    subject: Subject
    before: str
    after: str
    command: str
    panels: tuple[picture.Panel, ...]
    excerpts: tuple[Side, ...]
    excerpts_of: Subject | None
    events: tuple[Event, ...]
    earlier: int
    grid: Grid
    ranges: dict[str, str]
    notes: tuple[tuple[str, str, str], ...]
    setup: str


def pages(subjects: Sequence[Subject], engines: Sequence[str], releases: dict[str, list[str]]) -> list[Page]:
    """In the order of the subjects."""
    collected = []
    for number, subject in enumerate(subjects):
        minimal = subject.minimal
        source = _told_by(subject, subjects)
        collected.append(
            Page(
                subject=subject,
                before=subjects[number - 1].anchor if number else "",
                after=subjects[number + 1].anchor if number + 1 < len(subjects) else "",
                command=replay_command(minimal.path or f"{subject.fingerprint}.json", _where(subject)),
                panels=picture.draw(minimal.case, minimal.cell, picture.owner(subject.oracle)) if minimal.case else (),
                excerpts=tuple(_side(excerpt, source.founds[0]) for excerpt in source.founds[0].excerpts)
                if source
                else (),
                excerpts_of=source if source is not subject else None,
                events=tuple(reversed(subject.events))[:EVENTS_MAX],
                earlier=max(0, len(subject.events) - EVENTS_MAX),
                grid=_grid(subject, engines, releases),
                ranges={engine: range_of(subject, engine) for engine in engines},
                notes=_notes(subject),
                setup=_setup(minimal.case) if minimal.case else "",
            )
        )
    return collected


def columns(targets: Sequence[str]) -> dict[str, list[str]]:
    """The releases that anything was measured on, by engine, both in order."""
    by_engine: dict[str, list[str]] = {}
    for target in sorted(targets, key=target_order):
        release, engine = release_and_engine(target)
        by_engine.setdefault(engine, []).append(release)
    return {engine: by_engine[engine] for engine in sorted(by_engine, key=lambda name: (name != "emulated", name))}


def _grid(subject: Subject, engines: Sequence[str], releases: dict[str, list[str]]) -> Grid:
    by_place = {release_and_engine(target): square for target, square in subject.squares.items()}
    grid: Grid = {}
    for engine in engines:
        line, fails_before = {}, False
        for release in releases[engine]:
            square = by_place.get((release, engine), Square(target=f"{release}/{engine}"))
            # The release that ends a row of failing ones is what a reader looks for.
            line[release] = replace(square, state=FIXED) if fails_before and square.state == PASSING else square
            if square.fails or square.state in (PASSING, FIXED):
                fails_before = square.fails
        grid[engine] = line
    return grid


def _told_by(subject: Subject, others: Sequence[Subject]) -> Subject | None:
    """The finding of which it is recorded what both paths left: this one, or one that failed in the same way."""
    alike = (other for other in others if other.fingerprint and other.fingerprint == subject.fingerprint)
    return next(
        (subject_like for subject_like in (subject, *alike) if subject_like.founds and subject_like.founds[0].excerpts),
        None,
    )


def _notes(subject: Subject) -> tuple[tuple[str, str, str], ...]:
    """Why it cannot be run, or is not known; how often it fails where it does so now and then."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for target, square in subject.squares.items():
        if square.issue:
            by_text.setdefault((square.state, f"explained by a known issue: {square.issue}"), []).append(target)
        elif square.state == FLAKY:
            by_text.setdefault((FLAKY, f"{share(square.rate, 1)} of the last runs failed"), []).append(target)
        elif square.why and square.state in (CANNOT_RUN, UNKNOWN, UNCONFIRMED):
            by_text.setdefault((square.state, square.why), []).append(target)
    return tuple((state, listed(targets), why) for (state, why), targets in by_text.items())


def _where(subject: Subject) -> str:
    """The newest target on which it fails, or the newest one at all."""
    failing = [target for target, square in subject.squares.items() if square.fails]
    return (failing or list(subject.squares) or ["RELEASE/ENGINE"])[-1]


def _side(excerpt: Excerpt, finding: CampaignFinding) -> Side:
    differs = [left != right for left, right in zip(excerpt.graph, excerpt.eager, strict=True)]
    wrong = [differ and _judged(excerpt, place, finding) for place, differ in enumerate(differs)]
    return Side(
        name=f"step {excerpt.step} {excerpt.name}[{excerpt.row}]",
        graph=tuple(zip(excerpt.graph, wrong, strict=True)),
        eager=tuple(zip(excerpt.eager, wrong, strict=True)),
        differ=sum(differs),
        cut_before=excerpt.column > 0,
        cut_after=excerpt.column + len(excerpt.graph) < excerpt.width,
    )


def _judged(excerpt: Excerpt, place: int, finding: CampaignFinding) -> bool:
    """True if a value that differs is what was judged wrong. Of whole numbers each that differs is, in the wrong
    buffer's row and in what graph and eager were compared by; of others, which may differ within noise, the first wrong
    one alone: how far the rest may is not in the record."""
    judged_cell = finding.cell is not None and (excerpt.name, excerpt.row) == (finding.cell.buffer, finding.cell.row)
    if all(_WHOLE.fullmatch(text) for text in (*excerpt.graph, *excerpt.eager)):
        return judged_cell or finding.oracle == _COMPARES_OUTPUTS
    return judged_cell and finding.cell is not None and excerpt.column + place == finding.cell.column


def _setup(case: Case) -> str:
    setup = case.setup
    return (
        f"{setup.runner} runner, {setup.backend}, {setup.dtype}; "
        f"topk {setup.topk}, {counted(setup.num_steps, 'draft step')}, "
        f"{setup.num_draft_tokens} draft tokens; buckets {', '.join(map(str, setup.capture_bs))}; "
        f"page size {setup.page_size}, {setup.slots} slots, context {setup.context_len}; "
        f"vocabulary {setup.vocab_size}, hidden {setup.hidden_size}, "
        f"heads {setup.num_heads}/{setup.num_kv_heads} of {setup.head_dim}"
        f"{''.join(f'; {text}' for text in options(setup))}."
    )
