"""What the oracles said of a case that was run several times, as a table for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.cases.json_parts import plain
from repro.shrinking.replay import Outcome
from repro.traces.finding import Status, Verdict

_LINE_MAX = 2000


def show_outcome(console: Console, outcome: Outcome) -> None:
    """What each oracle said that did not just pass: in how many runs its worst verdict, where, and why."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    passed = []
    for told in zip(*outcome.runs, strict=True):
        worst: Verdict = max(told, key=lambda verdict: verdict.status)
        if worst.status is Status.PASS:
            passed.append(worst.oracle)
            continue
        count = sum(verdict.status is worst.status for verdict in told)
        why = worst.detail if worst.where in worst.detail else f"{worst.where}: {worst.detail}"
        cells = (worst.status.name, worst.oracle, f"{count} of {len(told)}", why)
        # As Text, so that nothing in it is taken for markup.
        table.add_row(*(Text(plain(cell, _LINE_MAX)) for cell in cells))
    if passed:
        table.add_row("PASS", Text(f"{len(passed)} oracles"), "", Text(", ".join(passed)))
    console.print(table)
