"""The table of fixes in the terminal: a row for each runner on which one is shown; plain lines where there is no
terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.cases.places import log_line
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status
from repro.upstream.prove import CheckpointResult, ProofRow

STYLES = {"PASS": "green", "FAIL": "bold red", "UNKNOWN": "yellow", "ERROR": "bold magenta"}
_CHARS_MAX = 400


def show_fixes(console: Console, rows: Sequence[ProofRow]) -> None:
    """All rows as a table on a terminal, else nothing: lines() has printed them already, with all reasons."""
    if not console.is_terminal:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("fix", "runner, oracle", "last buggy", "first fixed", "without it", "newest", ""):
        table.add_column(header, overflow="fold")
    for row in rows:
        stops = {stop.checkpoint.name: _stop_text(stop) for stop in row.stops}
        cells = [stops.get(name, Text("")) for name in ("buggy", "fixed", "without", "newest")]
        runner = f"{row.proof.runner}, {row.proof.backend}\n{row.proof.oracle}"
        table.add_row(f"#{row.fix.number}", runner, *cells, _end(row))
    console.print(table)


def lines(row: ProofRow) -> list[str]:
    """A row in words; beneath it, what does not hold."""
    head = f"#{row.fix.number} on {row.proof.runner}, {row.proof.backend}, {row.engine}"
    if row.reason:
        return [log_line(f"{head}: {row.reason}", _CHARS_MAX)]
    seen = ", ".join(f"{stop.checkpoint.sglang} {_word(stop)}" for stop in row.stops)
    texts = [f"{head}: {_conclusion(row).upper()}: {seen} ({row.proof.oracle})"]
    texts += [f"  not installed here: {', '.join(row.missing)}"] if row.missing else []
    texts += [
        f"  {stop.checkpoint.name} {stop.checkpoint.sglang}: {stop.problem}" for stop in row.stops if stop.problem
    ]
    # Each of them one line, without what would end a line or colour it; indented as it is.
    return [("  " if text.startswith("  ") else "") + log_line(text, _CHARS_MAX) for text in texts]


def _word(stop: CheckpointResult) -> str:
    answer = stop.answer
    return "ERROR" if answer.status is None else answer.status.name


def _stop_text(stop: CheckpointResult) -> Text:
    answer, word = stop.answer, _word(stop)
    count = f" {answer.failed} of {answer.tried}" if answer.status is Status.FAIL and answer.tried else ""
    as_wanted = Text(" ✓", style="green") if not stop.problem else Text(" ✗", style="bold red")
    release = stop.checkpoint.sglang.partition(" ")[0]  # the column says that it is without the fix
    return Text.assemble((word, STYLES[word]), count, as_wanted, f"\n{release}\n{answer.seconds:.1f} s")


def _end(row: ProofRow) -> Text:
    return Text(_conclusion(row), style=STYLES[row.exit_code.name])


def _conclusion(row: ProofRow) -> str:
    """An error of the harness says nothing about a fix."""
    words = {
        ExitCode.PASS: "holds",
        ExitCode.FAIL: "does not hold",
        ExitCode.UNKNOWN: "not covered",
        ExitCode.ERROR: "could not be run",
    }
    return words[row.exit_code]
