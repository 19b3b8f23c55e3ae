"""A case run several times on one target: its verdicts, its status, k of n, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repro.cases.case import Case, Target
from repro.cases.codec import AboutValue, digest
from repro.cases.releases import expected
from repro.shrinking.confirm import Judge, Run, attempts
from repro.traces.exit_codes import ExitCode, of_status
from repro.traces.finding import ENDED, Status, Verdict, by_oracle
from repro.traces.trace import End, Termination

AS_EXPECTED = "as expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """seed: its path. runs: the verdicts of each run that took place. statuses: the status of each of these. ended,
    facts, seconds: of the last run. errors: why other runs did not take place, where the harness failed."""

    seed: Path
    case: Case
    target: Target
    runs: tuple[tuple[Verdict, ...], ...]
    statuses: tuple[Status, ...]
    ended: End
    facts: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()

    @property
    def status(self) -> Status | None:
        """The worst of the runs; None if none took place."""
        return max(self.statuses, default=None)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.ERROR if self.errors else of_status(self.status)

    @property
    def word(self) -> str:
        """The status; UNSUPPORTED or ERROR where no run took place."""
        return self.ended.how.name if self.status is None else self.status.name

    @property
    def verdict(self) -> Verdict | None:
        """The failure that most runs showed, the first oracle's where several did so equally often."""
        failures = [v for run in self.runs for v in run if v.status is Status.FAIL]
        often = Counter(v.fingerprint for v in failures).most_common(1)
        return next(v for v in failures if v.fingerprint == often[0][0]) if often else None

    def failed(self, verdict: Verdict) -> int:
        """In how many runs this failure was seen."""
        return sum(
            any(v.status is Status.FAIL and v.fingerprint == verdict.fingerprint for v in run) for run in self.runs
        )


def outcome_of(
    seed: Path,
    case: Case,
    target: Target,
    run: Run,
    judge: Judge,
    overall: Callable[[Sequence[Verdict]], Status],
    tries: int,
) -> Outcome:
    """Run the case that often, at least once. Runs that did not take place are not judged."""
    made = list(attempts(run, judge, case, max(1, tries)))
    runs = tuple(attempt.verdicts for attempt in made if attempt.took_place)
    last = made[-1].trace
    return Outcome(
        seed=seed,
        case=case,
        target=target,
        runs=runs,
        statuses=tuple(overall(verdicts) for verdicts in runs),
        ended=last.ended,
        facts=dict(last.facts),
        seconds=dict(last.seconds),
        errors=tuple(trouble(attempt.trace.ended) for attempt in made if attempt.trace.ended.how is Termination.ERROR),
    )


def line(outcome: Outcome) -> str:
    """A line on an outcome: the oracle that failed, its place, and k of n; or the reason why nothing was judged."""
    where, n = f"{outcome.seed} on {outcome.target}", len(outcome.runs)
    if outcome.status is None:
        return f"{outcome.word} {where}: {trouble(outcome.ended)}"
    verdict = outcome.verdict
    if verdict:
        more = len({v.fingerprint for run in outcome.runs for v in run if v.status is Status.FAIL}) - 1
        others = f", and {more} other failure{'s' * (more > 1)}" if more else ""
        spot = f" at {verdict.where}" if verdict.where else ""
        return f"FAIL {where}: {verdict.oracle}{spot}: {outcome.failed(verdict)} of {n} runs{others}"
    if outcome.status is Status.PASS:
        return f"PASS {where}: failed 0 of {n} runs"
    doubts = [v for run in outcome.runs for v in run if v.status is Status.UNKNOWN]
    why = f"{doubts[0].oracle}: {doubts[0].where or doubts[0].detail}" if doubts else "no oracle had anything to judge"
    return f"UNKNOWN {where}: {why}: failed 0 of {n} runs"


def beside_expected(outcome: Outcome, about: Mapping[str, AboutValue]) -> str:
    """AS_EXPECTED, or what the seed expects instead; "" where it says nothing of this target, or nothing was judged.
    Only of releases as they were published: what a checkout has in it a seed does not know."""
    if outcome.target.is_checkout or outcome.target.engine not in ("emulated", "cuda"):
        return ""
    oracle = wanted_oracle(outcome, about, outcome.target.sglang)
    if oracle is None or outcome.status not in (Status.PASS, Status.FAIL):
        return ""
    failed = {v.oracle for run in outcome.runs for v in run if v.status is Status.FAIL}
    if oracle in failed or not (oracle or failed):
        return AS_EXPECTED
    return f"expected to fail by {oracle}" if oracle else "expected to pass"


def wanted_oracle(outcome: Outcome, about: Mapping[str, AboutValue], release: str) -> str | None:
    """The oracle that expected() names for this release and engine; None, too, for an oracle that judges nothing there:
    of a run that came to its end, the emulated engine alone records what each of them reads."""
    oracle = expected(about, release, outcome.target.engine)
    statuses = [by_oracle(run) for run in outcome.runs]
    ended = all(run.get(ENDED) is Status.PASS for run in statuses)
    unrecorded = ended and not any(oracle in run for run in statuses)
    return None if oracle and unrecorded and outcome.target.engine == "cuda" else oracle


def trouble(ended: End) -> str:
    """Why a run did not take place, on one line."""
    last = ([part.strip() for part in ended.detail.splitlines() if part.strip()] or [""])[-1]
    # The last line of a report of an exception repeats what it was called.
    return ended.what if ended.what and (ended.what in last or not last) else f"{ended.what}: {last}".removeprefix(": ")


def to_json(outcome: Outcome) -> dict[str, object]:
    """All of it as plain dicts, lists, texts and numbers."""
    verdict = outcome.verdict
    return {
        "seed": str(outcome.seed),
        "digest": digest(outcome.case),
        "target": str(outcome.target),
        "status": outcome.word,
        "line": line(outcome),
        "oracle": verdict.oracle if verdict else "",
        "where": verdict.where if verdict else "",
        "fingerprint": verdict.fingerprint if verdict else "",
        "failed": outcome.failed(verdict) if verdict else 0,
        "tried": len(outcome.runs),
        "runs": [[verdict.to_json() for verdict in run] for run in outcome.runs],
        "ended": asdict(outcome.ended),
        "errors": outcome.errors,
        "facts": outcome.facts,
        "seconds": outcome.seconds,
    }


def from_json(
    form: Mapping[str, Any], seed: Path, case: Case, target: Target, overall: Callable[[Sequence[Verdict]], Status]
) -> Outcome:
    """The outcome of this case that to_json() gave."""
    runs = tuple(tuple(map(Verdict.from_json, run)) for run in form["runs"])
    ended = dict(form["ended"])
    return Outcome(
        seed=seed,
        case=case,
        target=target,
        runs=runs,
        statuses=tuple(map(overall, runs)),
        ended=End(**(ended | {"how": Termination(ended["how"])})),
        facts=dict(form["facts"]),
        seconds=dict(form["seconds"]),
        errors=tuple(form["errors"]),
    )
