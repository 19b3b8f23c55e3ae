"""What went wrong first: of a failing run, the first buffer, row and step that was wrong, and where in sglang's sources
the error came out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.cases.case import Case
from repro.shrinking.replay import Outcome
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import How, Trace

Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]

_FRAME = re.compile(r'File "[^"\n]*?/(sglang/[^"\n]+)", line (\d+),? in (\w+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """cell: the first wrong place, found by that oracle. error, step, path: how the run ended, if not well, and where
    it was. place: the innermost line of sglang that was then being executed. exact: whether every launch was waited
    for, so that the error cannot come from an earlier one."""

    cell: Cell | None = None
    oracle: str = ""
    error: str = ""
    step: int = -1
    path: str = ""
    place: str = ""
    exact: bool = False

    def __str__(self) -> str:
        """In a sentence or two; empty if nothing could be established."""
        parts = []
        if self.cell:
            parts.append(f"First wrong: {self.cell} ({self.oracle}).")
        if self.error:
            where = f"in {self.path} of step {self.step}" if self.step >= 0 else f"in {self.path}"
            at = f", at {self.place}" if self.place else ""
            waited = "With every launch waited for, " if self.exact else ""
            text = f"{waited}{self.error} came out {where}{at}."
            parts.append(text[0].upper() + text[1:])
        return " ".join(parts)


def blame(trace: Trace, verdicts: Sequence[Verdict], *, exact: bool = False) -> Blame:
    """What this run establishes. Of several wrong places in a step the one that the first of the oracles found: they
    come in the order in which a step goes, from what is staged to what comes out."""
    cells = [
        (one.cell.step, number, one) for number, one in enumerate(verdicts) if one.status is Status.FAIL and one.cell
    ]
    first = min(cells, key=lambda found: found[:2])[2] if cells else None
    found = Blame(cell=first.cell, oracle=first.oracle) if first else Blame()
    ended = trace.ended
    if not _ended_badly(trace):
        return found
    # The stack that a dying process writes has its innermost frame first, a traceback has it last.
    frames = _FRAME.findall(ended.detail)
    dying = "most recent call first" in ended.detail
    place = "{}:{} in {}".format(*frames[0 if dying else -1]) if frames else ""
    error = ended.what or ended.how.value
    return dataclasses.replace(found, error=error, step=ended.step, path=ended.path, place=place, exact=exact)


def told(outcome: Outcome) -> Blame:
    """What the runs of an outcome establish: the first of them that failed."""
    failed = next((run for run in outcome.runs if any(one.status is Status.FAIL for one in run)), ())
    return blame(Trace(ended=outcome.ended), failed) if failed else Blame()


def established(case: Case, verdict: Verdict, run: Run, judge: Judge, run_waiting: Run | None = None) -> Blame:
    """Run a failing case once more and see what it establishes about this failure; nothing if it does not fail so.

    run_waiting: runs it where every launch is waited for, in a process that was started for that; used where the run
    does not come to its end, as an error may otherwise come out long after the launch that caused it.
    """
    trace = run(case)
    exact = False
    if run_waiting and _ended_badly(trace):
        again = run_waiting(case)
        # Waiting changes when things happen: a failure that it drives away is told as it was.
        if _ended_badly(again):
            trace, exact = again, True
    verdicts = judge(case, trace)
    failing = {one.fingerprint for one in verdicts if one.status is Status.FAIL}
    if verdict.fingerprint in failing or (exact and failing):
        return blame(trace, verdicts, exact=exact)
    return Blame()


def _ended_badly(trace: Trace) -> bool:
    return trace.ended.how is not How.DONE and trace.ended.how.took_place


def explained(verdict: Verdict, found: Blame) -> Verdict:
    """The verdict with what was established in its detail."""
    text = str(found)
    return dataclasses.replace(verdict, detail=f"{verdict.detail} {text}".strip()) if text else verdict
