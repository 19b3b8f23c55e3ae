"""Which line of sglang writes a value that is wrong: on the changed tree, and on its base in the same case."""

from __future__ import annotations

from repro.cases.case import Target
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import Origin, origin, writes
from repro.traces.finding import Finding
from repro.traces.trace import Trace


def wrote(finding: Finding, judge: Judge, here: Run, base: Target | None, there: Run | None) -> str:
    """In a sentence; empty if no write into an input buffer was wrong or missing. here, there: run a case with writes
    noted, on the changed tree and on its base."""
    case, wanted = finding.case, finding.verdict.fingerprint
    trace = here(case)
    failures = [verdict for verdict in judge(case, trace) if verdict.fingerprint == wanted]
    source = origin(case, trace, failures)
    if source is None:
        place = of_run(trace, failures).place
        return f"It came out at {place}." if place else ""
    mine = source.writer.place if source.writer else ""
    left = f" The value was left by call {source.left_by}, written by {source.left_at}." if source.left_by >= 0 else ""
    theirs = _last(there(case), source) if there else ""
    match bool(mine), bool(theirs):
        case True, True:
            return f"{base} writes it at {theirs}; here it is written at {mine}."
        case False, True:
            return f"{base} writes it at {theirs}; here no line does.{left}"
        case True, False:
            return f"Here it is written at {mine}{f'; {base} does not write it' if there else ''}."
        case _:
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
