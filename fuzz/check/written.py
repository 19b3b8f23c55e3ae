"""The line of sglang that writes a wrong value, on the changed tree and on its base in the same case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzz.check.location import Location, location
from repro.cases.case import Target
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.first_divergence import FirstDivergence, of_run
from repro.shrinking.origin import Origin, origin, writes
from repro.suspects.changed_lines import Line, named, naming
from repro.traces.finding import Finding
from repro.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """text: a sentence or two; empty where nothing is known. location: the line to look at in the changed tree."""

    text: str = ""
    location: Location | None = None


def wrote(
    finding: Finding, judge: Judge, here: Run, base: Target | None, there: Run | None, changed: Sequence[Line] = ()
) -> Written:
    """here, there: run a case with writes noted, on the changed tree and on its base. changed: the lines in which these
    differ."""
    case, fingerprint = finding.case, finding.verdict.fingerprint
    trace = here(case)
    failures = [verdict for verdict in judge(case, trace) if verdict.fingerprint == fingerprint]
    first = of_run(trace, failures)
    source = origin(case, trace, failures)
    texts = [f"It came out at {first.place}." if first.place else ""]
    if source:
        texts = [_line(source, base, _last(there(case), source) if there else None)]
    if first.cell:
        texts.append(naming(first.cell.buffer, changed))
    line = _location(first, source, changed)
    if not line and (line := next((Location(file=line.file, line=line.here) for line in changed if line.here), None)):
        texts.append(f"The change begins at {line.file}:{line.line}.")
    return Written(text=" ".join(filter(None, texts)), location=line)


def _location(first: FirstDivergence, source: Origin | None, changed: Sequence[Line]) -> Location | None:
    """The line that wrote the value; else a changed one that names its buffer, that which raised, or that which left
    the value in an earlier call."""
    if source and source.writer and (writer := location(source.writer.place)):
        return writer
    for line in named(first.cell.buffer, changed) if first.cell else ():
        if line.here:
            return Location(file=line.file, line=line.here)
    return location(first.place) or (location(source.left_at) if source else None)


def _line(source: Origin, base: Target | None, theirs: str | None) -> str:
    """theirs: the base's line; empty where it has none, None where there is no base."""
    mine = source.writer.place if source.writer else ""
    left = f" The value was left by call {source.left_by}, written by {source.left_at}." if source.left_by >= 0 else ""
    if theirs:
        return f"{base} writes it at {theirs}; here {f'it is written at {mine}' if mine else 'no line does'}.{left}"
    if mine:
        return f"Here it is written at {mine}{f'; {base} does not write it' if theirs is not None else ''}."
    return left.strip() or "No line of sglang was seen to write it: a compiled kernel does, or nothing."


def _last(trace: Trace, source: Origin) -> str:
    """The line that is the last to write this row in the same call."""
    cell = source.cell
    places = [
        write.place
        for write in writes(trace.facts, cell.step)
        if write.buffer == cell.buffer and write.first <= cell.row <= write.last
    ]
    return places[-1] if places else ""
