"""A guard for a change of sglang: all stored seeds and a short directed campaign on every runner, within minutes.

A failure that the change brings makes it red; one that was there before, on its base or by the known issues, does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.draw.directed import directed, places
from repro.cases import codec
from repro.cases.case import Case, Setup, Target
from repro.cases.codec import Seed
from repro.cases.releases import expected
from repro.ledger.known import Issue, explained
from repro.shrinking.confirm import attempts
from repro.shrinking.store import keep
from repro.shrinking.triage import Budget, Triage, TriageHooks
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import Termination, Trace

SETUPS_EACH, CASES_EACH = 3, 4
# Compiling its buckets takes longer than all else.
SETUPS_COMPILED = 1
# The share of the time that is kept for confirming and for the base.
RESERVE = 0.2
# There is no time to make cases small.
ONE_FRESH_RUN = Budget(runs=0, seconds=0.0, tries=0)

# Runner, backend, oracle, where: what makes two failures the same.
Identity = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How cases are run on one target. expect: the setups that come next."""

    run: Callable[[Case], Trace]
    run_fresh: Callable[[Case], Trace]
    expect: Callable[[Sequence[Setup]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A finding on the checked target. origin: the seed's file, or "drawn". known: why it is not the change's; empty
    if it is."""

    finding: Finding
    origin: str
    known: str = ""

    @property
    def identity(self) -> Identity:
        return identity(self.finding.case, self.finding.verdict)

    @property
    def replay(self) -> str:
        return f"python -m repro run {self.finding.seed} --target {self.finding.target}"


@dataclass(slots=True, kw_only=True)
class Checked:
    """The results of a check. Mutable: they gather. judged: cases by runner and backend. refused: runners that this
    release does not have; errors: runs that the harness could not make, each with its reason. gone: seeds that pass
    where they used to fail."""

    target: Target
    base: Target | None = None
    release: str = ""
    failures: dict[Identity, Failure] = field(default_factory=dict)
    judged: dict[tuple[str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    seeds: int = 0
    untried: int = 0  # setups for which no time was left
    seconds: float = 0.0

    @property
    def brought(self) -> list[Failure]:
        return [failure for failure in self.failures.values() if not failure.known]

    @property
    def known(self) -> list[Failure]:
        return [failure for failure in self.failures.values() if failure.known]

    @property
    def unjudged(self) -> list[tuple[str, str]]:
        """Runners and backends without a judged case that the release does not refuse."""
        return [place for place in places() if not self.judged.get(place) and place not in self.refused]


def identity(case: Case, verdict: Verdict) -> Identity:
    return case.setup.runner, case.setup.backend, verdict.oracle, verdict.where


@dataclass(slots=True, kw_only=True)
class Check:
    """A running check. Mutable.

    opened: runs cases on a target while it is entered. judge, overall: the oracles. issues: known ones. published: the
    release as published that a checkout of this version is held against where no base is given; None if none is here.
    """

    checked: Checked
    opened: Callable[[Target], AbstractContextManager[Ways]]
    judge: Callable[[Case, Trace], Sequence[Verdict]]
    overall: Callable[[Sequence[Verdict]], Status]
    issues: Sequence[Issue]
    out: Path
    seconds: float
    published: Callable[[str], Target | None] = lambda release: None
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] = print

    def run(self, seeds: Sequence[tuple[str, Seed]]) -> Checked:
        """Seeds first, then setup after setup until the time is up; then the base, on what failed."""
        start = self.clock()
        deadline = start + (1 - RESERVE) * self.seconds
        with self.opened(self.checked.target) as ways:
            ways.expect([seed.case.setup for _, seed in seeds])
            for name, seed in seeds:
                self._seed(ways, name, seed)
            for cases in self._rounds(ways, deadline):
                for case in cases:
                    self._case(ways, case, "drawn")
        if self.checked.base:
            self._ask_base(self.checked.base)
        elif self.checked.target.is_checkout and self.checked.known:
            self._ask_published()
        self.checked.seconds = self.clock() - start
        return self.checked

    def _rounds(self, ways: Ways, deadline: float) -> Iterator[list[Case]]:
        """The cases of one setup after another, every runner in turn."""
        planned = [
            list(directed(runner, backend, self.seed, number, CASES_EACH))
            for number in range(SETUPS_EACH)
            for runner, backend in places()
            if number < SETUPS_COMPILED or runner != "cpu_decode"
        ]
        for number, cases in enumerate(planned):
            if self.clock() > deadline:
                self.checked.untried = len(planned) - number
                self.tell(f"out of time: {self.checked.untried} of {len(planned)} setups were not tried")
                return
            ways.expect([later[0].setup for later in planned[number + 1 :]])
            yield cases

    def _seed(self, ways: Ways, name: str, seed: Seed) -> None:
        failed = self._case(ways, seed.case, name)
        if failed is None:
            return
        self.checked.seeds += 1
        oracle = self._expected(seed)
        if oracle and oracle not in failed:
            self.checked.gone.append(name)

    def _expected(self, seed: Seed) -> str:
        """The oracle that a seed says fails on this release; empty if none."""
        try:
            return expected(seed.about, self.checked.release, self.checked.target.engine) or ""
        except ValueError:  # a development tree has no release number
            return ""

    def _case(self, ways: Ways, case: Case, origin: str) -> set[str] | None:
        """Run and judge one case. The oracles that failed; None if it was not judged."""
        place = (case.setup.runner, case.setup.backend)
        if place in self.checked.errors:
            return None
        trace = ways.run(case)
        self.checked.release = self.checked.release or trace.facts.get("sglang", "")
        if trace.ended.how is Termination.UNSUPPORTED:
            self.checked.refused.setdefault(place, trace.ended.what)
            return None
        if trace.ended.how is Termination.ERROR:
            self.checked.errors[place] = trace.ended.what
            return None
        verdicts = self.judge(case, trace)
        if self.overall(verdicts) is not Status.UNKNOWN:
            self.checked.judged[place] = self.checked.judged.get(place, 0) + 1
        failed = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
        for verdict in failed:
            if identity(case, verdict) not in self.checked.failures:
                self._failed(ways, case, verdict, origin)
        return {verdict.oracle for verdict in failed}

    def _failed(self, ways: Ways, case: Case, verdict: Verdict, origin: str) -> None:
        """A failure of its kind for the first time: confirm it, keep it, and see whether it is known."""
        hooks = TriageHooks(run=ways.run, run_fresh=ways.run_fresh, judge=self.judge, say=lambda doing: None)
        finding = Triage(hooks, self.checked.target, verdict, ONE_FRESH_RUN).confirm_and_minimize([case])
        if not finding.failed:
            self.checked.unsure.append(f"{' '.join(identity(case, verdict))}: failed once, not in a fresh process")
            return
        # A folder for each runner: the same oracle may fail in the same place on two of them.
        path = keep(self.out / f"{case.setup.runner}-{case.setup.backend}", finding)
        failure = Failure(
            finding=replace(finding, seed=str(path)),
            origin=origin,
            known=self._known(case, verdict) if self.checked.base is None else "",
        )
        self.checked.failures[failure.identity] = failure
        # With a base, whether the change brings it is asked at the end.
        word = (
            "known"
            if failure.known
            else "FAIL"
            if self.checked.base is None
            else f"fails, {self.checked.base} is to be asked:"
        )
        self.tell(f"{word} {' '.join(failure.identity)}: {path}")

    def _known(self, case: Case, verdict: Verdict) -> str:
        place = (case.setup.runner, case.setup.backend)
        release, engine = self.checked.release, self.checked.target.engine
        issue = explained(self.issues, release, engine, place, verdict.oracle, verdict.fingerprint)
        return str(issue) if issue else ""

    def _ask_base(self, base: Target) -> None:
        """Whether the failures are on the base as well."""
        for failure in self._shared(base, list(self.checked.failures.values())):
            self.checked.failures[failure.identity] = replace(failure, known=f"{base} fails in the same way")

    def _ask_published(self) -> None:
        """A known issue names a place, and a change may break the same place: what the release as published does not
        show in the same case is the change's."""
        known = self.checked.known
        release = self.published(self.checked.release)
        if release is None:
            self.checked.unsure.append(
                f"{len(known)} failures are known by name alone: no release is here to hold them against"
            )
            return
        shared = {failure.identity for failure in self._shared(release, known)}
        for failure in known:
            if failure.identity not in shared:
                self.checked.failures[failure.identity] = replace(failure, known="")
                self.tell(f"FAIL {' '.join(failure.identity)}: {release} passes the same case: {failure.finding.seed}")

    def _shared(self, base: Target, failures: Sequence[Failure]) -> Iterator[Failure]:
        """Those of these failures that the base shows in the same case, in a fresh process; what it cannot be
        asked about is said."""
        if not failures:
            return
        with self.opened(base) as ways:
            for failure in failures:
                case, fingerprint = failure.finding.case, failure.finding.verdict.fingerprint
                for attempt in attempts(ways.run_fresh, self.judge, case, 1):
                    if attempt.failure(fingerprint):
                        yield failure
                    elif not attempt.took_place:
                        name = " ".join(failure.identity)
                        self.checked.unsure.append(f"{name}: not run on {base}: {attempt.trace.ended.what}")


def stored_seeds(folder: Path) -> list[tuple[str, Seed]]:
    """All seeds, by the name of their file."""
    return [(path.name, codec.read(path)) for path in sorted(folder.glob("*.json"))]
