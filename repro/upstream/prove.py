"""Whether a fix is what makes the difference: the buggy release fails, the fixed one passes, the fixed one without the
fix fails in the same way, and the newest release passes. What runs and what searches is passed in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from repro.cases.case import Target
from repro.cases.codec import read
from repro.cases.releases import release_order
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.replay import ERROR, Outcome, line, outcome_of, severest
from repro.traces.campaign import Campaign, Found
from repro.traces.finding import Status, Verdict
from repro.traces.trace import How
from repro.upstream.fixes import SEEDS, Fix, Proof

NOT_HELD, NOT_COVERED = 1, 2
# How the reason begins of a proof for which this host lacks releases.
NOT_HERE = "not possible here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one question. status: None if it could not be asked. verdict: the failure by the proof's own
    oracle, if there was one. seconds: until the first failure, or all that it took. text: for a person."""

    status: Status | None
    verdict: Verdict | None = None
    failed: int = 0
    tried: int = 0
    seconds: float = 0.0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One of the four places that a proof visits. release: which one; sglang: in words, where it is without the fix."""

    name: str
    release: str
    sglang: str
    wanted: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A station and what was seen there. problem: why it does not hold; empty if it does."""

    station: Station
    target: str
    answer: Answer
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. reason: why it is not covered; empty, with all stops, if it is. missing: places that this
    host has not."""

    fix: Fix
    proof: Proof
    engine: str
    reason: str = ""
    stops: tuple[Stop, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.reason:
            return NOT_COVERED
        if any(stop.answer.status is None for stop in self.stops):
            return ERROR
        return NOT_HELD if any(stop.problem for stop in self.stops) else 0

    @property
    def holds(self) -> bool:
        return self.exit_code == 0


class Trouble(Exception):
    """A target cannot be had. The text is one line."""


# One answer for each of the proofs, in their order.
Ask = Callable[[Target, Sequence[Proof]], Sequence[Answer]]
# The target that is this release without this fix. Trouble if there is none.
Without = Callable[[Fix, Target], Target]


There = Callable[[str], bool]


def _everywhere(release: str) -> bool:
    return True


def stations(fix: Fix, newest: str, there: There = _everywhere) -> tuple[Station, ...]:
    """Those whose release is there. The fix is taken out of the newest one where the first that has it is missing."""
    has_it = release_order(newest) >= release_order(fix.fixed)
    base = newest if has_it and not there(fix.fixed) else fix.fixed
    every = (
        Station(name="buggy", release=fix.buggy, sglang=fix.buggy, wanted=Status.FAIL),
        Station(name="fixed", release=fix.fixed, sglang=fix.fixed, wanted=Status.PASS),
        Station(name="without", release=base, sglang=f"{base} without #{fix.number}", wanted=Status.FAIL),
        *([Station(name="newest", release=newest, sglang=newest, wanted=Status.PASS)] if has_it else []),
    )
    return tuple(station for station in every if there(station.release))


def with_what_is_there(row: Row, newest: str, there: There) -> Row:
    """The row with what is missing for it. Not covered where nothing is left that must fail, or that must pass."""
    if row.reason:
        return row
    visited = stations(row.fix, newest, there)
    wanted = {"buggy": row.fix.buggy, "fixed": row.fix.fixed}
    missing = tuple(f"{name} {release}" for name, release in wanted.items() if not there(release))
    if {station.wanted for station in visited} == {Status.FAIL, Status.PASS}:
        return replace(row, missing=missing)
    return replace(row, reason=f"{NOT_HERE}: {', '.join(dict.fromkeys(missing))} not installed", missing=missing)


def prove(
    rows: Sequence[Row],
    newest: str,
    ask: Ask,
    without: Without,
    on_row: Callable[[Row], None],
    *,
    exact: bool,
    there: There = _everywhere,
) -> list[Row]:
    """The rows with their stops, in order; on_row is given each as soon as it is whole.

    Each target is asked once, for all that is wanted of it: importing it is what takes long. exact: whether without
    the fix the very same failure is wanted; another case may show one of its buffers more or fewer. there: whether a
    release can be asked; a proof is made of those stations that can.
    """
    rows = [with_what_is_there(row, newest, there) for row in rows]
    wanted: dict[Target, list[Proof]] = {}
    targets: dict[tuple[Fix, Station], Target | str] = {}
    for row in rows:
        for station in stations(row.fix, newest, there) if not row.reason else ():
            if (row.fix, station) not in targets:
                targets[row.fix, station] = _target(row, station, without)
            target = targets[row.fix, station]
            if isinstance(target, Target) and row.proof not in wanted.setdefault(target, []):
                wanted[target].append(row.proof)
    answers: dict[tuple[Target, Proof], Answer] = {}
    done: list[Row] = []

    def finish() -> None:
        while len(done) < len(rows):
            row = rows[len(done)]
            visited = stations(row.fix, newest, there)
            stops = None if row.reason else _stops(row, visited, targets, answers, exact)
            if stops is None and not row.reason:
                return
            done.append(replace(row, stops=stops or ()))
            on_row(done[-1])

    finish()
    for target, proofs in wanted.items():
        answers |= {(target, proof): answer for proof, answer in zip(proofs, ask(target, proofs), strict=True)}
        finish()
    return done


def _target(row: Row, station: Station, without: Without) -> Target | str:
    """Where this station is; if it cannot be had, why."""
    if station.name != "without":
        return Target(station.release, row.engine)
    try:
        return without(row.fix, Target(station.release, row.engine))
    except Trouble as trouble:
        return str(trouble)


def _stops(
    row: Row,
    visited: Sequence[Station],
    targets: dict[tuple[Fix, Station], Target | str],
    answers: dict[tuple[Target, Proof], Answer],
    exact: bool,
) -> tuple[Stop, ...] | None:
    """What was seen at all stations; None while an answer is missing."""
    found: list[Stop] = []
    for station in visited:
        target = targets[row.fix, station]
        if isinstance(target, str):
            answer = Answer(status=None, text=target)
        elif (target, row.proof) in answers:
            answer = answers[target, row.proof]
        else:
            return None
        buggy = next((stop.answer.verdict for stop in found if stop.station.name == "buggy"), None)
        like = buggy if exact and station.name == "without" else None
        problem = _problem(station, row.proof, answer, like)
        found.append(Stop(station=station, target=str(target), answer=answer, problem=problem))
    return tuple(found)


def _problem(station: Station, proof: Proof, answer: Answer, like: Verdict | None) -> str:
    """Why this answer is not the wanted one; empty if it is. like: the failure that it is to be the same as."""
    if answer.status is None:
        return answer.text
    if station.wanted is Status.PASS:
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
) -> Answer:
    """What the stored seed comes to on this target. BadSeed if it is none."""
    start = time.monotonic()
    case = read(SEEDS / proof.seed).case
    outcome = outcome_of(Path(proof.seed), case, target, run, judge, overall, tries)
    return answer_of(outcome, proof, time.monotonic() - start)


def answer_of(outcome: Outcome, proof: Proof, seconds: float) -> Answer:
    """What a stored case came to."""
    failures = (v for run in outcome.runs for v in run if v.status is Status.FAIL and v.oracle == proof.oracle)
    verdict = next(failures, None)
    failing = {v.oracle for run in outcome.runs for v in run if v.status is Status.FAIL}
    others = outcome.status is Status.FAIL and failing <= set(proof.neighbours)
    return Answer(
        status=None if outcome.errors else Status.PASS if others else outcome.status,
        verdict=verdict,
        failed=outcome.failed(verdict) if verdict else 0,
        tried=len(outcome.runs),
        seconds=seconds,
        text="; ".join(outcome.errors) or line(outcome),
    )


def answer_of_search(done: Campaign, proof: Proof) -> Answer:
    """What a campaign came to that was to end with the first failure by the proof's oracle."""
    own = next((found for found in done.findings if found.oracle == proof.oracle and found.failed), None)
    found = own or next(iter(done.findings), None)
    counts = f"{done.cases} cases, {done.judged} judged, in {done.seconds:.1f} s"
    if found is None and (done.error or done.errors or _not_run(done) == done.cases):
        why = done.error or next(iter([*done.errors, *done.unsupported]), "no case was drawn")
        return Answer(status=None, seconds=done.seconds, text=f"nothing could be run: {why}")
    if found is None:
        status = Status.PASS if done.judged else Status.UNKNOWN
        return Answer(status=status, seconds=done.seconds, text=f"nothing found: {counts}")
    return Answer(
        status=Status.FAIL,
        verdict=_verdict(own) if own else None,
        failed=found.failed,
        tried=found.tried,
        seconds=own.at_seconds if own else done.seconds,
        text=f"{found.oracle} at {found.where}: {found.failed} of {found.tried} runs, case {found.at_case}; {counts}",
    )


def _not_run(done: Campaign) -> int:
    return sum(count for how, count in done.endings.items() if not How(how).took_place)


def _verdict(found: Found) -> Verdict:
    return Verdict(oracle=found.oracle, status=Status.FAIL, where=found.where, detail=found.detail, cell=found.cell)


def exit_code(rows: Sequence[Row]) -> int:
    """0 only if every row holds."""
    return severest([row.exit_code for row in rows])


def totals(rows: Sequence[Row]) -> str:
    """How many of all hold, and how many could not be given here, and why."""
    held, here = sum(row.holds for row in rows), [row for row in rows if row.reason.startswith(NOT_HERE)]
    reasons = ", ".join(dict.fromkeys(text for row in here for text in row.missing))
    return f"{held} of {len(rows)} proofs hold" + (
        f", {len(here)} {NOT_HERE}: not installed: {reasons}" if here else ""
    )


def first_failures(rows: Sequence[Row]) -> str:
    """Median and worst time to the first failure, where one was to be found; empty if none was."""
    times = [
        stop.answer.seconds
        for row in rows
        for stop in row.stops
        if stop.station.wanted is Status.FAIL and stop.answer.verdict
    ]
    if not times:
        return ""
    return (
        f"time to the first failure: median {median(times):.1f} s, worst {max(times):.1f} s, of {len(times)} searches"
    )


def to_json(rows: Sequence[Row], *, fresh: bool, whole: bool) -> dict[str, object]:
    """All of it as plain dicts, lists, texts and numbers. whole: whether these are all rows; until then, there is no
    exit code."""
    code = exit_code(rows) if whole else None
    return {"exit_code": code, "fresh": fresh, "rows": [_row_to_json(row) for row in rows]}


def _row_to_json(row: Row) -> dict[str, object]:
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


def _stops_to_json(row: Row) -> Iterator[dict[str, object]]:
    for stop in row.stops:
        answer = stop.answer
        verdict = answer.verdict
        yield {
            "station": stop.station.name,
            "sglang": stop.station.sglang,
            "target": stop.target,
            "wanted": stop.station.wanted.name,
            "status": answer.status.name if answer.status is not None else "ERROR",
            "holds": not stop.problem,
            "problem": stop.problem,
            "failed": answer.failed,
            "tried": answer.tried,
            "seconds": round(answer.seconds, 3),
            "text": answer.text,
            "verdict": asdict(verdict) | {"status": verdict.status.name} if verdict else None,
            "fingerprint": verdict.fingerprint if verdict else "",
        }
