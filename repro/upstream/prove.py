"""Proves that a fix makes the difference: the buggy release fails, the fixed one passes, the fixed one without the
fix fails in the same way, and the newest release passes. What runs and what searches is passed in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from repro.cases.case import Target
from repro.cases.codec import read
from repro.cases.releases import release_order
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.replay import Outcome, line, outcome_of
from repro.traces.campaign import Campaign
from repro.traces.exit_codes import ExitCode, severest
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination
from repro.upstream.fixes import SEEDS, Fix, Proof

# How the reason begins of a proof for which this host lacks releases.
NOT_HERE = "not possible here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one proof's case on one target."""

    status: Status | None  # None: it could not be run
    verdict: Verdict | None = None  # the failure by the proof's oracle, if there was one
    failed: int = 0
    tried: int = 0
    seconds: float = 0.0  # until the first failure, else the whole time
    text: str = ""  # for a person


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One of the four places that a proof visits."""

    name: str  # buggy, fixed, without or newest
    release: str
    sglang: str  # in words: the release, and whether the fix is taken out of it
    expected: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """A checkpoint and its result."""

    checkpoint: Checkpoint
    target: str
    answer: Result
    problem: str = ""  # why the result is not the wanted one; empty if it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """One line of the table."""

    fix: Fix
    proof: Proof
    engine: str
    reason: str = ""  # why the proof is not covered; empty, with all stops, if it is
    stops: tuple[CheckpointResult, ...] = ()
    missing: tuple[str, ...] = ()  # releases that this host lacks

    @property
    def exit_code(self) -> ExitCode:
        if self.reason:
            return ExitCode.UNKNOWN
        if any(stop.answer.status is None for stop in self.stops):
            return ExitCode.ERROR
        return ExitCode.FAIL if any(stop.problem for stop in self.stops) else ExitCode.PASS

    @property
    def holds(self) -> bool:
        return self.exit_code is ExitCode.PASS


class TargetUnavailable(Exception):
    """A target that cannot be run here. The text is one line."""


# A proof at one of its checkpoints.
Visit = tuple[ProofRow, Checkpoint]
# The target of each checkpoint, or why there is none.
Targets = dict[tuple[Fix, Checkpoint], Target | str]
# One result for each of the proofs, in their order.
Ask = Callable[[Target, Sequence[Proof]], Sequence[Result]]
# The target with this fix taken out of this release. TargetUnavailable if there is none.
Without = Callable[[Fix, Target], Target]


There = Callable[[str], bool]


def _everywhere(release: str) -> bool:
    return True


def checkpoints(fix: Fix, newest: str, there: There = _everywhere) -> tuple[Checkpoint, ...]:
    """The checkpoints whose releases are there. If the first fixed release is missing, the newest one is reverted."""
    has_it = release_order(newest) >= release_order(fix.fixed)
    base = newest if has_it and not there(fix.fixed) else fix.fixed
    every = (
        Checkpoint(name="buggy", release=fix.buggy, sglang=fix.buggy, expected=Status.FAIL),
        Checkpoint(name="fixed", release=fix.fixed, sglang=fix.fixed, expected=Status.PASS),
        Checkpoint(name="without", release=base, sglang=f"{base} without #{fix.number}", expected=Status.FAIL),
        *([Checkpoint(name="newest", release=newest, sglang=newest, expected=Status.PASS)] if has_it else []),
    )
    return tuple(checkpoint for checkpoint in every if there(checkpoint.release))


def with_what_is_there(row: ProofRow, newest: str, there: There) -> ProofRow:
    """The row with what is missing for it. Not covered where nothing is left that must fail, or that must pass."""
    if row.reason:
        return row
    visited = checkpoints(row.fix, newest, there)
    releases = {"buggy": row.fix.buggy, "fixed": row.fix.fixed}
    missing = tuple(f"{name} {release}" for name, release in releases.items() if not there(release))
    if {checkpoint.expected for checkpoint in visited} == {Status.FAIL, Status.PASS}:
        return replace(row, missing=missing)
    return replace(row, reason=f"{NOT_HERE}: {', '.join(dict.fromkeys(missing))} not installed", missing=missing)


def prove(
    rows: Sequence[ProofRow],
    newest: str,
    ask: Ask,
    without: Without,
    on_row: Callable[[ProofRow], None],
    *,
    exact: bool,
    there: There = _everywhere,
) -> list[ProofRow]:
    """The rows with their stops, in order; on_row is given each as soon as it is whole.

    Each target is asked once, for all that is wanted of it: importing it is what takes long. exact: whether without
    the fix the very same failure is wanted; another case may show one of its buffers more or fewer. there: whether a
    release can be run; a proof uses the checkpoints that can.
    """
    rows = [with_what_is_there(row, newest, there) for row in rows]
    visits = [(row, checkpoint) for row in rows if not row.reason for checkpoint in checkpoints(row.fix, newest, there)]
    targets = _targets(visits, without)
    answers: dict[tuple[Target, Proof], Result] = {}
    done: list[ProofRow] = []

    def finish() -> None:
        while len(done) < len(rows):
            row = rows[len(done)]
            visited = checkpoints(row.fix, newest, there)
            stops = () if row.reason else _stops(row, visited, targets, answers, exact)
            if stops is None:
                return
            done.append(replace(row, stops=stops))
            on_row(done[-1])

    finish()
    for target, proofs in _proofs_by_target(visits, targets).items():
        answers |= {(target, proof): answer for proof, answer in zip(proofs, ask(target, proofs), strict=True)}
        finish()
    return done


def _targets(visits: Sequence[Visit], without: Without) -> Targets:
    targets: Targets = {}
    for row, checkpoint in visits:
        if (row.fix, checkpoint) not in targets:  # to take a fix out of a release takes long
            targets[row.fix, checkpoint] = _target(row, checkpoint, without)
    return targets


def _proofs_by_target(visits: Sequence[Visit], targets: Targets) -> dict[Target, list[Proof]]:
    proofs: dict[Target, list[Proof]] = {}
    for row, checkpoint in visits:
        target = targets[row.fix, checkpoint]
        if isinstance(target, Target) and row.proof not in proofs.setdefault(target, []):
            proofs[target].append(row.proof)
    return proofs


def _target(row: ProofRow, checkpoint: Checkpoint, without: Without) -> Target | str:
    """The target of this checkpoint, or why there is none."""
    if checkpoint.name != "without":
        return Target(checkpoint.release, row.engine)
    try:
        return without(row.fix, Target(checkpoint.release, row.engine))
    except TargetUnavailable as trouble:
        return str(trouble)


def _stops(
    row: ProofRow,
    visited: Sequence[Checkpoint],
    targets: Targets,
    answers: dict[tuple[Target, Proof], Result],
    exact: bool,
) -> tuple[CheckpointResult, ...] | None:
    """The results at all checkpoints; None while one is missing."""
    stops: list[CheckpointResult] = []
    for checkpoint in visited:
        target = targets[row.fix, checkpoint]
        if isinstance(target, str):
            answer = Result(status=None, text=target)
        elif (target, row.proof) in answers:
            answer = answers[target, row.proof]
        else:
            return None
        buggy = next((stop.answer.verdict for stop in stops if stop.checkpoint.name == "buggy"), None)
        like = buggy if exact and checkpoint.name == "without" else None
        problem = _problem(checkpoint, row.proof, answer, like)
        stops.append(CheckpointResult(checkpoint=checkpoint, target=str(target), answer=answer, problem=problem))
    return tuple(stops)


def _problem(checkpoint: Checkpoint, proof: Proof, answer: Result, like: Verdict | None) -> str:
    """Why this result is not the wanted one; empty if it is. like: the failure that it must equal."""
    if answer.status is None:
        return answer.text
    if checkpoint.expected is Status.PASS:
        return "" if answer.status is Status.PASS else f"does not pass: {answer.text}"
    if answer.verdict is None:
        return f"{proof.oracle} does not fail: {answer.text}"
    if like and like.fingerprint != answer.verdict.fingerprint:
        return f"fails in another way: at {answer.verdict.where}, not at {like.where}"
    return ""


def replayed(
    proof: Proof,
    target: Target,
    run: Run,
    judge: Judge,
    overall: Callable[[Sequence[Verdict]], Status],
    tries: int,
) -> Result:
    """The stored seed's result on this target. BadSeed if the file is not a seed."""
    start = time.monotonic()
    case = read(SEEDS / proof.seed).case
    outcome = outcome_of(Path(proof.seed), case, target, run, judge, overall, tries)
    return answer_of(outcome, proof, time.monotonic() - start)


def answer_of(outcome: Outcome, proof: Proof, seconds: float) -> Result:
    """A stored case's result."""
    failures = (v for run in outcome.runs for v in run if v.status is Status.FAIL and v.oracle == proof.oracle)
    verdict = next(failures, None)
    failing = {v.oracle for run in outcome.runs for v in run if v.status is Status.FAIL}
    others = outcome.status is Status.FAIL and failing <= set(proof.neighbours)
    return Result(
        status=None if outcome.errors else Status.PASS if others else outcome.status,
        verdict=verdict,
        failed=outcome.failed(verdict) if verdict else 0,
        tried=len(outcome.runs),
        seconds=seconds,
        text="; ".join(outcome.errors) or line(outcome),
    )


def answer_of_search(done: Campaign, proof: Proof) -> Result:
    """The result of a campaign that was to end with the first failure by the proof's oracle."""
    matching = next((shown for shown in done.findings if shown.oracle == proof.oracle and shown.failed), None)
    shown = matching or next(iter(done.findings), None)
    counts = f"{done.cases} cases, {done.judged} judged, in {done.seconds:.1f} s"
    if shown is None and (done.error or done.errors or _not_run(done) == done.cases):
        why = done.error or next(iter([*done.errors, *done.unsupported]), "no case was drawn")
        return Result(status=None, seconds=done.seconds, text=f"nothing could be run: {why}")
    if shown is None:
        others = [oracle for oracle, statuses in done.verdicts.items() if statuses.get("fail")]
        status = Status.FAIL if others else Status.PASS if done.judged else Status.UNKNOWN
        what = f"failures by {', '.join(others)} alone" if others else "nothing found"
        return Result(status=status, seconds=done.seconds, text=f"{what}: {counts}")
    return Result(
        status=Status.FAIL,
        verdict=matching.finding.verdict if matching else None,
        failed=shown.failed,
        tried=shown.tried,
        seconds=matching.at_seconds if matching else done.seconds,
        text=f"{shown.oracle} at {shown.where}: {shown.failed} of {shown.tried} runs, case {shown.at_case}; {counts}",
    )


def _not_run(done: Campaign) -> int:
    return sum(count for how, count in done.endings.items() if not Termination(how).took_place)


def exit_code(rows: Sequence[ProofRow]) -> ExitCode:
    """0 only if every row holds."""
    return severest([row.exit_code for row in rows])


def totals(rows: Sequence[ProofRow]) -> str:
    """The number of proofs that hold, and of those that cannot be made on this host, with the reasons."""
    holding, missing = sum(row.holds for row in rows), [row for row in rows if row.reason.startswith(NOT_HERE)]
    reasons = ", ".join(dict.fromkeys(text for row in missing for text in row.missing))
    return f"{holding} of {len(rows)} proofs hold" + (
        f", {len(missing)} {NOT_HERE}: not installed: {reasons}" if missing else ""
    )


def first_failures(rows: Sequence[ProofRow]) -> str:
    """Median and worst time to the first failure, where one was to be found; empty if none was."""
    times = [
        stop.answer.seconds
        for row in rows
        for stop in row.stops
        if stop.checkpoint.expected is Status.FAIL and stop.answer.verdict
    ]
    if not times:
        return ""
    return (
        f"time to the first failure: median {median(times):.1f} s, worst {max(times):.1f} s, of {len(times)} searches"
    )


def to_json(rows: Sequence[ProofRow], *, fresh: bool, whole: bool) -> dict[str, object]:
    """All of it as plain dicts, lists, texts and numbers. whole: whether these are all rows; until then, there is no
    exit code."""
    code = exit_code(rows) if whole else None
    return {"exit_code": code, "fresh": fresh, "rows": [_row_to_json(row) for row in rows]}


def _row_to_json(row: ProofRow) -> dict[str, object]:
    return {
        "fix": row.fix.number,
        "title": row.fix.title,
        "runner": row.proof.runner,
        "backend": row.proof.backend,
        "engine": row.engine,
        "seed": row.proof.seed,
        "oracle": row.proof.oracle,
        "covered": not row.reason,
        "reason": row.reason,
        "holds": row.holds,
        "missing": list(row.missing),
        "stops": list(_stops_to_json(row)),
    }


def _stops_to_json(row: ProofRow) -> Iterator[dict[str, object]]:
    for stop in row.stops:
        answer = stop.answer
        verdict = answer.verdict
        yield {
            "station": stop.checkpoint.name,
            "sglang": stop.checkpoint.sglang,
            "target": stop.target,
            "wanted": stop.checkpoint.expected.name,
            "status": answer.status.name if answer.status is not None else "ERROR",
            "holds": not stop.problem,
            "problem": stop.problem,
            "failed": answer.failed,
            "tried": answer.tried,
            "seconds": round(answer.seconds, 3),
            "text": answer.text,
            "verdict": verdict.to_json() if verdict else None,
            "fingerprint": verdict.fingerprint if verdict else "",
        }


def with_stops_from_json(row: ProofRow, form: Mapping[str, Any], newest: str, there: There) -> ProofRow:
    """The row as it was elsewhere, where to_json() gave this one for it."""
    visited = {checkpoint.name: checkpoint for checkpoint in checkpoints(row.fix, newest, there)}
    stops = tuple(_stop_from_json(visited[stop["station"]], stop) for stop in form["stops"])
    return replace(row, reason=form["reason"], missing=tuple(form["missing"]), stops=stops)


def _stop_from_json(checkpoint: Checkpoint, form: Mapping[str, Any]) -> CheckpointResult:
    answer = Result(
        status=None if form["status"] == "ERROR" else Status[form["status"]],
        verdict=Verdict.from_json(form["verdict"]) if form["verdict"] else None,
        failed=form["failed"],
        tried=form["tried"],
        seconds=form["seconds"],
        text=form["text"],
    )
    return CheckpointResult(checkpoint=checkpoint, target=form["target"], answer=answer, problem=form["problem"])
