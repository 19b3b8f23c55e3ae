"""A history's result in the terminal: tables for people who watch, plain lines for pipes and logs."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.changes import WORDS, case_counts, changes, headline, latest
from reports.events import Square, release_and_engine
from reports.pages import columns, pages
from reports.subjects import Subject, range_of, subjects, targets
from reports.wording import counted, duration, listed, one_line, rate, replay_command, share, shortened, stale
from repro.ledger.known import Issue
from repro.ledger.read import History
from repro.traces.campaign import Campaign
from repro.traces.finding import Status

# The word gives the state; colour only repeats it, and only on a terminal that has colours.
STYLES = {
    "regressed": "bold red",
    "new": "bold red",
    "known": "red",
    "flaky": "yellow",
    "unconfirmed": "yellow",
    "unknown": "yellow",
    "cannot run": "dim",
    "fixed": "bold green",
    "passing": "green",
    "not run": "dim",
}
LINE_CHARS_MAX = 400
CAMPAIGNS_MAX = 30  # of a ledger; the latest are shown
NAME_CHARS_MAX = 60


def show(console: Console, history: History, issues: Sequence[Issue] = ()) -> None:
    """Everything worth knowing, on a screenful or two."""
    all_subjects = subjects(history, issues)
    for sentence in headline(history, all_subjects):
        _line(console, sentence)
    show_changes(console, history, all_subjects)
    show_matrix(console, history, all_subjects)
    for subject in all_subjects:
        if subject.kind == "finding":
            show_finding(console, subject)
    campaigns = [row.campaign for row in history.campaigns]
    show_campaigns(console, campaigns)
    show_verdicts(console, campaigns)
    cases, judged = case_counts(history)
    if cases:
        _line(console, f"{counted(cases, 'case')} in all, {share(judged, cases)} judged")


def show_changes(console: Console, history: History, all_subjects: Sequence[Subject]) -> None:
    """Print what is new, regressed, fixed or flaky since the run before, a line each."""
    run = latest(history)
    if run is None or len(history.runs) < 2:
        return
    _line(console, f"since the run before ({run.kind}, {run.started[:16].replace('T', ' ')}):")
    news = changes(all_subjects, run)
    for word, _ in WORDS:
        for change in news[word]:
            _line(console, f"  {word}: {change.name} on {listed(list(change.targets))}", STYLES[word])
    if not any(news.values()):
        _line(console, "  nothing changed")


def show_matrix(console: Console, history: History, all_subjects: Sequence[Subject]) -> None:
    """For each engine a table: what fails on which release."""
    releases = columns(targets(history))
    rows = pages(all_subjects, list(releases), releases)
    for engine, names in releases.items():
        lines = [
            (
                shortened(f"{page.subject.kind} {page.subject.name}", NAME_CHARS_MAX),
                *map(_cell, page.grid[engine].values()),
            )
            for page in rows
        ]
        _table(console, (f"on the {engine} engine", *names), lines, numbers=())


def show_finding(console: Console, subject: Subject) -> None:
    """A finding: what failed, how surely, where it is and is not, and how to see it again."""
    states = [square.state for square in subject.squares.values()]
    word = "FAIL" if subject.fails else "NOT CONFIRMED"
    _line(console, f"{word} {subject.name} ({subject.fingerprint})", STYLES["new" if subject.fails else "unconfirmed"])
    if subject.minimal.cell or subject.detail:
        _line(console, f"  {subject.minimal.cell or subject.detail}")
    texts = []
    for state in dict.fromkeys(states):
        where = [f"{target}{_runs(subject.squares[target])}" for target in subject.targets(state)]
        texts.append(f"{state} on {listed(where)}")
    _line(console, f"  {'; '.join(texts)}")
    for engine in dict.fromkeys(release_and_engine(target)[1] for target in subject.squares):
        if text := range_of(subject, engine):
            _line(console, f"  {engine}: {text}")
    failing = [target for target, square in subject.squares.items() if square.fails] or list(subject.squares)
    if subject.minimal.path and failing:
        _line(console, f"  {replay_command(subject.minimal.path, failing[-1])}")


_COLUMNS = (
    *("target", "runner", "cases", "judged", "replays", "time", "cases/s"),
    *("transitions", "findings", "errors", "ended"),
)


def show_campaigns(console: Console, campaigns: Sequence[Campaign]) -> None:
    """A line for each campaign, and beneath it what kept cases from being judged."""
    shown = campaigns[-CAMPAIGNS_MAX:]
    rows = [
        (
            str(campaign.target),
            f"{campaign.runner} {campaign.backend}",
            f"{campaign.cases:,}",
            f"{campaign.judged:,}",
            f"{campaign.replays:,}",
            duration(campaign.seconds),
            rate(campaign),
            f"{len(campaign.transitions)}/{campaign.transitions_possible}"
            f" {share(len(campaign.transitions), campaign.transitions_possible)}",
            str(len(campaign.findings)),
            f"{sum(campaign.errors.values()):,}",
            campaign.stopped,
        )
        for campaign in shown
    ]
    if len(shown) < len(campaigns):
        _line(console, f"the last {len(shown)} of {len(campaigns)} campaigns:")
    _table(console, _COLUMNS, rows, numbers=range(2, 10))
    for campaign in shown:
        if campaign.error:
            _line(console, f"{campaign.target} stopped: {campaign.error}", "bold red")
        for reason, count in campaign.errors.items():
            _line(console, f"{campaign.target} ERROR, {counted(count, 'case')}: {reason}", "bold red")
        for reason, count in campaign.unsupported.items():
            _line(console, f"{campaign.target} unsupported, {counted(count, 'case')}: {reason}", "yellow")


def show_verdicts(console: Console, campaigns: Sequence[Campaign]) -> None:
    """Print verdicts by oracle and target, reasons of UNKNOWN, and values that passed for want of a known reader."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    reasons: dict[tuple[str, str], int] = {}
    for campaign in campaigns:
        for oracle, by_word in campaign.verdicts.items():
            total = counts.setdefault((str(campaign.target), oracle), {})
            for word, count in by_word.items():
                total[word.upper()] = total.get(word.upper(), 0) + count
        for reason, count in campaign.unknown.items():
            key = (str(campaign.target), reason)
            reasons[key] = reasons.get(key, 0) + count
    rows = [
        (target, oracle, *(f"{total.get(status.name, 0):,}" for status in Status))
        for (target, oracle), total in counts.items()
    ]
    _table(console, ("target", "oracle", *(status.name for status in Status)), rows, numbers=range(2, 5))
    for (target, reason), count in reasons.items():
        _line(console, f"{target} UNKNOWN {count:,}: {reason}")
    for value, count in stale(campaigns).items():
        _line(console, f"stale, no reader known: {value}, {counted(count, 'case')}")


def _cell(square: Square) -> str:
    return "" if square.state == "not run" else f"{square.state}{_runs(square)}"


def _runs(square: Square) -> str:
    return f" {square.runs}" if square.fails and square.runs else ""


def _table(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] | range
) -> None:
    """A table on a terminal; elsewhere a header and a line each, in columns and never cut or wrapped."""
    if not rows:
        return
    clean = [[shortened(one_line(text), LINE_CHARS_MAX) for text in row] for row in rows]
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(header, *clean, strict=True)]
        for row in [header, *clean]:
            line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            _raw(console, Text(line.rstrip()))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for place, name in enumerate(header):
        table.add_column(one_line(name), justify="right" if place in numbers else "left", overflow="fold")
    for row in clean:
        # Text, not markup: what a finding says in square brackets is shown, not obeyed.
        table.add_row(*(Text(text, style=STYLES.get(text.rstrip("0123456789/ "), "")) for text in row))
    console.print(table)


def _line(console: Console, text: str, style: str = "") -> None:
    _raw(console, Text(shortened(one_line(text), LINE_CHARS_MAX), style=style))


def _raw(console: Console, text: Text) -> None:
    """Print without wrapping: a line that is copied or searched must be whole."""
    console.print(text, soft_wrap=True, highlight=False)
