"""The first divergence of a failing run: the first wrong buffer, row and step, and the line of sglang's sources at
which the error came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.cases.case import Case
from repro.shrinking.replay import Outcome
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.stacks import of_sglang, places
from repro.traces.trace import Termination, Trace

Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDivergence:
    """cell: the first wrong place, found by that oracle. error, step, path: how the run ended, if not well, and where
    it was. place: the innermost line of sglang that was then being executed. harness: the harness's, if it lies deeper.
    exact: whether every launch was waited for, so that the error cannot come from an earlier one."""

    cell: Cell | None = None
    oracle: str = ""
    error: str = ""
    step: int = -1
    path: str = ""
    place: str = ""
    harness: str = ""
    exact: bool = False

    def __str__(self) -> str:
        """In a sentence or two; empty if nothing could be established."""
        parts = []
        if self.cell:
            parts.append(f"First wrong: {self.cell} ({self.oracle}).")
        if self.error:
            where = f"in {self.path} of step {self.step}" if self.step >= 0 else f"in {self.path}"
            at = f", at {self.place}" if self.place else ""
            if self.exact and self.harness:
                at += f", in the harness's own code ({self.harness})"
            waited = "With every launch waited for, " if self.exact else ""
            text = f"{waited}{self.error} came out {where}{at}."
            parts.append(text[0].upper() + text[1:])
        return " ".join(parts)


def of_run(trace: Trace, verdicts: Sequence[Verdict], *, exact: bool = False) -> FirstDivergence:
    """The first divergence of this run. Of several wrong places in a step, that of the earliest oracle: oracles come in
    the order in which a step goes, from staged inputs to outputs."""
    failures = [
        (verdict.cell.step, number, verdict)
        for number, verdict in enumerate(verdicts)
        if verdict.status is Status.FAIL and verdict.cell
    ]
    verdict = min(failures, key=lambda failure: failure[:2])[2] if failures else None
    first = FirstDivergence(cell=verdict.cell, oracle=verdict.oracle) if verdict else FirstDivergence()
    ended = trace.ended
    if not _ended_badly(trace):
        return first
    frames = places(ended.detail)
    place = of_sglang(frames)
    harness = frames[0] if frames and frames[0] != place else ""
    return dataclasses.replace(
        first,
        error=ended.what or ended.how.value,
        step=ended.step,
        path=ended.path,
        place=place,
        harness=harness,
        exact=exact,
    )


def of_outcome(outcome: Outcome) -> FirstDivergence:
    """The first divergence of the first run that failed."""
    failed = next((run for run in outcome.runs if any(verdict.status is Status.FAIL for verdict in run)), ())
    return of_run(Trace(ended=outcome.ended), failed) if failed else FirstDivergence()


def locate(case: Case, verdict: Verdict, run: Run, judge: Judge, run_waiting: Run | None = None) -> FirstDivergence:
    """Run a failing case once more and see what it establishes about this failure; nothing if it does not fail so.

    run_waiting: runs it where every launch is waited for, in a process that was started for that; used where the run
    does not come to its end, as an error may otherwise come out long after the launch that caused it.
    """
    trace = run(case)
    exact = False
    if run_waiting and _ended_badly(trace):
        again = run_waiting(case)
        # Waiting changes when things happen: a failure that it drives away is reported as it was.
        if _ended_badly(again):
            trace, exact = again, True
    verdicts = judge(case, trace)
    failing = {failed.fingerprint for failed in verdicts if failed.status is Status.FAIL}
    if verdict.fingerprint in failing or (exact and failing):
        return of_run(trace, verdicts, exact=exact)
    return FirstDivergence()


def _ended_badly(trace: Trace) -> bool:
    return trace.ended.how is not Termination.DONE and trace.ended.how.took_place


def annotate(verdict: Verdict, first: FirstDivergence) -> Verdict:
    """The verdict with the first divergence in its detail."""
    text = str(first)
    return dataclasses.replace(verdict, detail=f"{verdict.detail} {text}".strip()) if text else verdict
