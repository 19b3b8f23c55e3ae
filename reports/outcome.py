"""The verdicts on a case that was run several times, as a table for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.cases.places import log_line
from repro.shrinking.replay import Outcome
from repro.traces.finding import Status, Verdict, by_oracle


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Print each oracle that did not just pass: in how many runs, where, and why."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    worst = by_oracle(verdict for run in outcome.runs for verdict in run)
    passed = [oracle for oracle, status in worst.items() if status is Status.PASS]
    kinds: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in (verdict for run in outcome.runs for verdict in run):
        if verdict.status is worst[verdict.oracle] and verdict.oracle not in passed:
            kinds.setdefault((verdict.oracle, verdict.where), []).append(verdict)
    for (oracle, where), failures in kinds.items():
        why = failures[0].detail if where in failures[0].detail else f"{where}: {failures[0].detail}"
        cells = (failures[0].status.name, oracle, f"{len(failures)} of {len(outcome.runs)}", why)
        # As Text, so that nothing in it is taken for markup.
        table.add_row(*(Text(log_line(cell)) for cell in cells))
    if passed:
        table.add_row("PASS", Text(f"{len(passed)} oracles"), "", Text(", ".join(passed)))
    console.print(table)
