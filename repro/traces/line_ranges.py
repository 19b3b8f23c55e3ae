"""Sets of line numbers as text: `12-15, 20`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

# No file of source has so many lines.
LINES_MAX = 1_000_000


def line_ranges(numbers: Iterable[int]) -> str:
    """The text of these numbers. Neighbours are joined; empty: none."""
    ranges = []
    for _, group in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        ranges.append(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}")
    return ", ".join(ranges)


def line_numbers(text: str) -> frozenset[int]:
    """The reverse. ValueError if the text is not of line_ranges()."""
    numbers: set[int] = set()
    for part in filter(None, text.split(", ")):
        first, dash, last = part.partition("-")
        end = int(last if dash else first)
        if end > LINES_MAX:
            raise ValueError(f"line {end}: more than {LINES_MAX:,}")
        numbers.update(range(int(first), end + 1))
    return frozenset(numbers)
