"""Suspects of a change: the functions in which a sglang differs from its base, where the case passes there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from repro.suspects.changed_lines import Line
from repro.suspects.clues import Clues, Suspect
from repro.suspects.way import Function, Ran
from repro.traces.finding import Verdict

_SHOWN = 90  # characters of a line


def of_change(clues: Clues, failure: Verdict, changed: Sequence[Line]) -> list[Suspect]:
    """A suspect for each changed line of a function that ran: first those that name the first wrong buffer, then those
    of the call that goes wrong, then lines that ran themselves, which of a kernel are not known."""
    ever, buffer = _lines(clues.way.during(*clues.way.phases)), failure.cell.buffer if failure.cell else ""
    call = _lines(clues.way.during(*clues.way.of_step(failure.cell.step))) if failure.cell else {}
    around = [(line, _around(clues, line, ever)) for line in changed if line.text.strip()]
    places = [(line, function) for line, function in around if function is not None]

    def rank(place: tuple[Line, Function]) -> tuple[bool, bool, bool]:
        line, function = place
        named = bool(buffer and re.search(rf"\b{re.escape(buffer)}\b", line.text))
        return not named, function not in call, line.here not in ever[function]

    return [
        Suspect(
            function=function,
            line=line.here,
            reason=f"the change {'removes' if line.gone else 'has'} {line.text.strip()[:_SHOWN]}",
        )
        for line, function in sorted(places, key=rank)
    ]


def _around(clues: Clues, line: Line, ever: Collection[Function]) -> Function | None:
    """The function that ran and that a line is in. A line that is gone may have been the last of its function: then the
    one in front of its place is in it."""
    functions = (clues.at(line.file, number) for number in (line.here, line.here - line.gone))
    return next((function for function in functions if function in ever), None)


def _lines(every: Iterable[Ran]) -> Mapping[Function, set[int]]:
    lines: defaultdict[Function, set[int]] = defaultdict(set)
    for ran in every:
        lines[ran.function] |= ran.lines
    return lines
