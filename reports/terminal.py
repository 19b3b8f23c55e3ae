"""Campaigns, findings and replays in the terminal: tables for people who watch, plain lines for pipes and logs."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.bugs import Bug, gather, strangers
from reports.wording import (
    bug_name,
    counted,
    duration,
    k_of_n,
    listed,
    one_line,
    rate,
    replay_command,
    share,
    shortened,
)
from repro.finding import Status
from repro.record import Campaign, Found, Replay

# A status is told by its word; colour only repeats it, and only on a terminal that has colours.
STYLES = {
    "FAIL": "bold red",
    "NOT CONFIRMED": "yellow",
    "OTHER": "yellow",
    "UNKNOWN": "yellow",
    "PASS": "green",
    "NOT RUN": "dim",
}
SAID = {
    "fails on": ("FAIL",),
    "seen but not confirmed on": ("NOT CONFIRMED",),
    "fails otherwise on": ("OTHER",),
    "passes on": ("PASS",),
    "not known on": ("UNKNOWN", "NOT RUN"),
}
LINE_CHARS_MAX = 400


def show(console: Console, campaigns: Sequence[Campaign], replays: Sequence[Replay] = ()) -> None:
    """Everything worth knowing at the end of a command, on a screenful or two."""
    show_campaigns(console, campaigns)
    bugs = gather(campaigns, replays)
    for bug in bugs:
        show_bug(console, bug)
    show_replays(console, strangers(bugs, replays))


def show_campaigns(console: Console, campaigns: Sequence[Campaign]) -> None:
    """A line for each campaign, and beneath it what kept cases from being judged."""
    header = ("target", "runner", "cases", "judged", "replays", "time", "cases/s", "transitions", "findings", "ended")
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
            campaign.stopped,
        )
        for campaign in campaigns
    ]
    _table(console, header, rows, numbers=range(2, 9))
    for campaign in campaigns:
        if campaign.error:
            _line(console, f"{campaign.target} stopped: {campaign.error}", "bold red")
        for reason, count in campaign.unfit.items():
            _line(console, f"{campaign.target} unfit, {counted(count, 'case')}: {reason}", "yellow")


def show_verdicts(console: Console, campaigns: Sequence[Campaign]) -> None:
    """What each oracle said, by target, and why it was UNKNOWN."""
    rows = []
    for campaign in campaigns:
        for oracle, by_word in campaign.verdicts.items():
            counts = {word.upper(): count for word, count in by_word.items()}
            rows.append((str(campaign.target), oracle, *(f"{counts.get(s.name, 0):,}" for s in Status)))
    _table(console, ("target", "oracle", *(status.name for status in Status)), rows, numbers=range(2, 5))
    for campaign in campaigns:
        for reason, count in campaign.unknown.items():
            _line(console, f"{campaign.target} UNKNOWN {count:,}: {reason}")


def show_bug(console: Console, bug: Bug) -> None:
    """A finding: what failed, how surely, where it is and is not, and how to see it again."""
    found = bug.best
    word = "FAIL" if bug.confirmed else "NOT CONFIRMED"
    _line(console, f"{word} {bug_name(bug.oracle, bug.where)} ({bug.fingerprint})", STYLES[word])
    _line(console, f"  {found.cell or found.detail}")
    words = []
    for said, kinds in SAID.items():
        where = [presence.target for presence in bug.presences if presence.word in kinds]
        if where:
            words.append(f"{said} {listed(where)}")
    _line(console, f"  {'; '.join(words)}")
    again = f"{k_of_n(found)} in fresh processes" if found.tried else "not run again"
    _line(console, f"  {_size(found)}, {again}, found after {duration(found.at_seconds)}")
    _line(console, f"  {replay_command(found.seed, found.target)}")


def show_replays(console: Console, replays: Sequence[Replay]) -> None:
    """A line for each stored case that was run."""
    rows = [(r.seed, r.target, r.status.name, k_of_n(r), r.line) for r in replays]
    _table(console, ("seed", "target", "result", "failed", "in one line"), rows, numbers=(3,))


def _size(found: Found) -> str:
    most = max((len(step.requests) for step in found.case.steps), default=0)
    return f"{counted(len(found.case.steps), 'step')} of at most {counted(most, 'request')}"


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
        table.add_column(name, justify="right" if place in numbers else "left", overflow="fold")
    for row in clean:
        # Text, not markup: what a finding says in square brackets is shown, not obeyed.
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row))
    console.print(table)


def _line(console: Console, text: str, style: str = "") -> None:
    _raw(console, Text(shortened(one_line(text), LINE_CHARS_MAX), style=style))


def _raw(console: Console, text: Text) -> None:
    """Print without wrapping: a line that is copied or searched must be whole."""
    console.print(text, soft_wrap=True, highlight=False)
