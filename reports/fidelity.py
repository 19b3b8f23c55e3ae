"""The agreement of two targets, as a table in the terminal: a row for each oracle and each kind of output."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.wording import counted, one_line, share
from repro.fidelity.compare import CASES, CHOICES, LISTED, OUTPUT, SLOTS, VALUES, Agreement

_WAYS = ("agree", "tie", "differ", "undefined", "not recorded")
# Where there is nothing to compare.
_NOT_COMPARED = ("undefined", "not recorded")
_REASONS_SHOWN = 5


def show_fidelity(console: Console, agreement: Agreement) -> None:
    """Print the table, how close the closest call was, and what could not be compared."""
    first, second = agreement.names
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("", *_WAYS, ""):
        table.add_column(header, justify="left" if not header else "right")
    for kind, ways in agreement.ways.items():
        total = sum(count for way, count in ways.items() if way not in _NOT_COMPARED)
        cells = [str(ways[way] or "") for way in _WAYS]
        table.add_row(kind, *cells, share(ways["agree"] + ways["tie"], total))
    cases = counted(agreement.compared, "case")
    differ = counted(len(agreement.disagreements), "disagreement")
    _line(console, f"{first} and {second}: {cases} compared, {differ}")
    if agreement.ways:
        console.print(table)
        _line(console, f"KV values differ by at most {agreement.farthest:.3f} of the allowed bound")
    _pairs(console, agreement)
    _not_compared(console, agreement)


def _pairs(console: Console, agreement: Agreement) -> None:
    """A line for each runner and backend: cases compared, then agree / tie / differ of verdicts and of each output."""
    if len(agreement.pairs) < 2:
        return
    outputs = (CHOICES, OUTPUT, SLOTS, VALUES, LISTED)
    for pair, kinds in agreement.pairs.items():
        verdicts = sum((ways for kind, ways in kinds.items() if kind not in (CASES, *outputs)), Counter[str]())
        cases = kinds[CASES]
        parts = [counted(cases["compared"], "case")]
        parts += [f"{cases['not compared']} not compared"] if cases["not compared"] else []
        for name, ways in (("verdicts", verdicts), *((kind, kinds.get(kind, Counter[str]())) for kind in outputs)):
            counts = [ways[way] for way in ("agree", "tie", "differ")]
            parts += [f"{name} {' / '.join(map(str, counts))}"] if any(counts) else []
        _line(console, f"{pair}: {', '.join(parts)} (agree / tie / differ)")


def _not_compared(console: Console, agreement: Agreement) -> None:
    if not agreement.not_compared:
        return
    reasons = Counter(text.partition(": ")[2] for text in agreement.not_compared)
    _line(console, f"not compared: {counted(len(agreement.not_compared), 'case')}")
    for reason, count in reasons.most_common(_REASONS_SHOWN):
        _line(console, f"  {count} x {reason}")


def _line(console: Console, text: str) -> None:
    # As Text, so that nothing in it is taken for markup.
    console.print(Text(one_line(text)), soft_wrap=True)
