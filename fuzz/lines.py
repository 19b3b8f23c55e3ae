"""The lines of sglang that cases run, in the text of a campaign's record: by file, as in `12-15, 20`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType

from repro.traces.campaign import Campaign
from repro.traces.line_ranges import line_numbers, line_ranges
from repro.traces.trace import Trace

# What a traced session records (runners/sessions/mutation.py): before its capture, and from then on.
PHASES = ("built_lines", "lines")


def lines_of(traces: Iterable[Trace]) -> dict[str, frozenset[int]]:
    """The lines that ran in these traced sessions, by file."""
    numbers: dict[str, set[int]] = {}
    for trace in traces:
        for path in PHASES:
            for file, of_file in trace.path(-1, path).items():
                numbers.setdefault(file, set()).update(of_file.tolist())
    return {file: frozenset(of_file) for file, of_file in numbers.items()}


def of_functions(done: Campaign, root: Path) -> Campaign:
    """The campaign with those lines alone that belong to functions, as every import runs the others, and with the ones
    that did not run. root: the import path that the files are below. OSError, ValueError if a file cannot be read."""
    ran, missing = {}, {}
    for file, text in done.lines.items():
        every, numbers = executable((root / file).read_text()), line_numbers(text)
        if every & numbers:
            ran[file], missing[file] = line_ranges(every & numbers), line_ranges(every - numbers)
    return replace(done, lines=ran, lines_missing=missing)


def executable(text: str) -> frozenset[int]:
    """The lines of a module's functions that have code. ValueError if it cannot be compiled."""
    return frozenset(_lines(compile(text, "<sglang>", "exec")))


def _lines(code: CodeType) -> Iterator[int]:
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
