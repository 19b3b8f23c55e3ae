"""A history's result as Markdown: for a pull request, a chat, or a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from reports.changes import WORDS, case_counts, changes, headline, latest
from reports.events import Square
from reports.pages import Page, columns, pages
from reports.subjects import Subject, subjects, targets
from reports.wording import counted, share
from repro.cases.places import code
from repro.cases.places import markdown as in_markdown
from repro.ledger.known import Issue
from repro.ledger.read import History

ROWS_MAX = 60  # of a table: longer comments are not read, and some hosts refuse them
CHANGES_MAX = 20
_code = partial(code, length_max=120)


def markdown(history: History, issues: Sequence[Issue] = ()) -> str:
    """Headings, a list of what changed, and the matrix of each engine."""
    return "\n".join(_lines(history, subjects(history, issues))) + "\n"


def _lines(history: History, all_subjects: Sequence[Subject]) -> Iterator[str]:
    yield "## eagleeye"
    yield ""
    yield " ".join(map(in_markdown, headline(history, all_subjects)))
    cases, judged = case_counts(history)
    if cases:
        yield ""
        yield (
            f"{counted(cases, 'case')} on {counted(len(targets(history)), 'target')}, {share(judged, cases)} judged, "
            f"in {counted(len(history.runs), 'run')}."
        )
    run = latest(history)
    if run is not None and len(history.runs) > 1:
        news = changes(all_subjects, run)
        yield ""
        yield f"### Since the run before ({in_markdown(run.kind)}, {in_markdown(run.started[:16].replace('T', ' '))})"
        yield ""
        if not any(news.values()):
            yield "Nothing changed."
        for word, _ in WORDS:
            for change in news[word][:CHANGES_MAX]:
                yield f"- **{word}**: {_code(change.name)} on {', '.join(map(_code, change.targets))}"
            if len(news[word]) > CHANGES_MAX:
                yield f"- **{word}**: {len(news[word]) - CHANGES_MAX} more"
    releases = columns(targets(history))
    rows = pages(all_subjects, list(releases), releases)
    for engine, names in releases.items():
        yield from _matrix(
            engine, names, [page for page in rows if any(s.state != "not run" for s in page.grid[engine].values())]
        )


def _matrix(engine: str, names: list[str], rows: list[Page]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield f"### On the {in_markdown(engine)} engine"
    yield ""
    yield f"| | {' | '.join(map(_code, names))} |"
    yield f"|---|{'---|' * len(names)}"
    for page in rows[:ROWS_MAX]:
        cells = " | ".join(map(_cell, page.grid[engine].values()))
        yield f"| {page.subject.kind} {_code(page.subject.name)} | {cells} |"
    if len(rows) > ROWS_MAX:
        yield ""
        yield f"{len(rows) - ROWS_MAX} more rows are in the HTML report."


def _cell(square: Square) -> str:
    if square.state == "not run":
        return ""
    loud = square.state in ("new", "regressed")
    word = f"**{square.state}**" if loud else square.state
    return f"{word} {square.runs}" if square.fails and square.runs else word
