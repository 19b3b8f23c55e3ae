"""One row of a conformance table: whether a runner could be driven and judged, and if not, the first words why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from repro.cases.case import Case
from repro.traces.finding import TIE, Status, Verdict
from repro.traces.trace import Termination, Trace
from runners.conformance.jobs import Job
from runners.recording.observer import PASSING

_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Refused|Interrupt|Exit)\b.*)$", re.MULTILINE)
# Where a frame is sglang's, or an adapter's: what comes before is where it happens to lie.
_PLACES = re.compile(r".*?((?:sglang|runners/releases|runners/engines|runners/sessions)/.*)")
_ENGINES = "runners/engines/"
_WORDS_MAX = 300
# How often a case is run whose values tie, and how far apart its numbers of data are then.
TRIES, _APART = 3, 100


class State(StrEnum):
    """GREEN: it ran and was judged. UNSUPPORTED: not to be had here, in the words of sglang or of a stand-in."""

    GREEN = "green"
    UNSUPPORTED = "unsupported"
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """words: why it is not green. fails: oracles that failed, and where: a finding of the release, not of conformance.
    passes: oracles that passed."""

    runner: str
    backend: str
    algorithm: str
    state: State
    adapter: str = ""
    words: str = ""
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.runner, self.backend, self.algorithm


Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]
Overall = Callable[[Sequence[Verdict]], Status]
# Whether this failure is known of the release: then it says nothing against the adapter.
Known = Callable[[Case, Verdict], bool]


def none_known(case: Case, verdict: Verdict) -> bool:
    return False


def rows(
    jobs: Sequence[Job],
    run: Run,
    judge: Judge,
    overall: Overall,
    clock: Callable[[], float],
    known: Known = none_known,
) -> Iterator[Row]:
    """One row a job, as it is run. Where values of a run lie too near each other to be judged, which depends on the
    machine's rounding, it is run with others."""
    for job in jobs:
        start = clock()
        for number in range(TRIES):
            case = _with_other_values(job.case, number)
            trace = run(case)
            verdicts = tuple(judge(case, trace))
            if overall(verdicts) is not Status.UNKNOWN or all(verdict.where != TIE for verdict in verdicts):
                break
        yield row(job, trace, verdicts, overall, clock() - start, known)


def _with_other_values(case: Case, number: int) -> Case:
    """The case itself for number 0."""
    steps = [
        replace(step, requests=tuple(replace(each, data=each.data + _APART * number) for each in step.requests))
        for step in case.steps
    ]
    return replace(case, steps=tuple(steps))


def row(
    job: Job,
    trace: Trace,
    verdicts: Sequence[Verdict],
    overall: Overall,
    seconds: float = 0.0,
    known: Known = none_known,
) -> Row:
    fails = tuple(f"{v.oracle}: {v.where}" for v in verdicts if v.status is Status.FAIL)
    state, words = _state(trace, verdicts, overall)
    failed = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
    if trace.ended.how is Termination.RAISED and failed and all(known(job.case, verdict) for verdict in failed):
        state, words = State.GREEN, ""
    return Row(
        runner=job.runner,
        backend=job.backend,
        algorithm=job.algorithm,
        state=state,
        adapter=trace.facts.get("adapter", ""),
        words=words,
        fails=fails if state is State.GREEN else (),
        passes=tuple(v.oracle for v in verdicts if v.status is Status.PASS) if state is State.GREEN else (),
        seconds=round(seconds, 2),
    )


def _state(trace: Trace, verdicts: Sequence[Verdict], overall: Overall) -> tuple[State, str]:
    ended = trace.ended
    if ended.how is Termination.UNSUPPORTED:
        return State.UNSUPPORTED, _one_line(ended.what)
    if ended.how is not Termination.DONE:
        return State.RED, culprit(ended.what, ended.detail)
    if overall(verdicts) is Status.UNKNOWN:
        doubts = (f"{v.oracle}: {v.where}" for v in verdicts if v.status is Status.UNKNOWN)
        return State.RED, _one_line("it ran, but was not judged: " + ", ".join(doubts))
    return State.GREEN, ""


def culprit(what: str, detail: str) -> str:
    """The error, and the innermost line of sglang or of the harness on the way there."""
    errors = [line for line in _ERROR.findall(detail) if not line.startswith("Traceback")]
    message = errors[-1] if errors else what
    places = [
        (match.group(1), line, function)
        for path, line, function in _FRAME.findall(detail)
        if (match := _PLACES.match(path)) and not (function in PASSING and _ENGINES in path)
    ]
    if not places:
        return _one_line(message)
    path, line, function = places[-1]
    return _one_line(f"{path}:{line} in {function}: {message}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_WORDS_MAX]
