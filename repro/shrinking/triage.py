"""Triage of a failure: kept at once, confirmed in fresh processes, made small, confirmed again. The one implementation,
for campaigns, `repro shrink` and `fuzz check`; everything that is done is passed in as a function.

The best case known has been handed to `keep` at every moment; being interrupted loses nothing but smallness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from repro.cases.case import Case, Setup, Target
from repro.shrinking.confirm import Attempt, Judge, Run, attempts, confirm
from repro.shrinking.first_divergence import FirstDivergence, annotate
from repro.shrinking.shrink import NotFailing, shrink
from repro.traces.finding import Finding, Verdict
from repro.traces.trace import Termination, Trace

# How many sessions a shrinking crash asks for ahead; the pool knows how many it has room for.
SESSIONS_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageHooks:
    """The functions that triage is given."""

    run: Run  # a case in a session that may be kept from case to case
    run_fresh: Run  # a case in a process of its own
    judge: Judge  # the verdicts of all oracles
    say: Callable[[str], None]  # what is being done, one line
    # Store a form of the finding, and the run that showed it, if that is at hand.
    keep: Callable[[Finding, Trace | None], None] = lambda finding, trace: None
    each_run: Callable[[int], None] = lambda runs: None  # the number of the shrinking run that begins
    locate: Callable[[Case, Verdict], FirstDivergence] = lambda case, verdict: (
        FirstDivergence()
    )  # where a confirmed failure begins
    expect: Callable[[Sequence[Setup]], None] = lambda setups: None  # setups that need a new session soon
    stage: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()  # times confirm and shrink
    clock: Callable[[], float] = time.monotonic  # seconds, rising


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of one failure. runs, seconds: to make it small; with `each_way` once in kept sessions and
    once more in fresh processes, else in all. tries: fresh processes that confirm the smallest case; 0: the first
    confirmation is enough. first_tries: fresh processes in which each candidate is tried first."""

    runs: int
    seconds: float
    tries: int
    first_tries: int = 1
    each_way: bool = False


class Triage:
    """One failure on its way to a confirmed finding. Mutable: it counts runs and knows the verdict of each case."""

    def __init__(self, hooks: TriageHooks, target: Target, verdict: Verdict, budget: Budget) -> None:
        self.hooks, self.target, self.verdict, self.budget = hooks, target, verdict, budget
        self.runs = 0  # spent on making the case small
        self._verdicts: dict[Case, Verdict] = {}  # of each failing case, for its first wrong cell
        self._latest: tuple[Case, Trace] | None = None  # the case that failed last, and the run
        self._crashed = False
        self._smallest: Case | None = None  # which no pass makes smaller

    def confirm_and_minimize(self, candidates: Sequence[Case], trace: Trace | None = None) -> Finding:
        """Triage a failure that the first of these cases showed, in the run with this trace."""
        case = candidates[0]
        self._latest = (case, trace) if trace else None
        self.keep(case)
        start, tried = self._reproduced(candidates)
        if start is None:
            return self.keep(case, 0, tried)
        return self.minimize(start) if self.budget.runs else self.keep(start, 1, tried)

    def minimize(self, start: Case) -> Finding:
        """Make a failing case small, and confirm it.

        A smaller case that fails only in a session which other cases have used is not taken: then everything is done
        again with a fresh process for every run.
        """
        stop = self.hooks.clock() + self.budget.seconds
        counts: dict[Case, tuple[int, int]] = {}  # failed, tried
        for run in dict.fromkeys((self.hooks.run, self.hooks.run_fresh)):
            smallest = self._shrunk(start, run, stop)
            if smallest is None:
                continue
            failed, tried = counts[smallest] = self._confirmed(smallest)
            if failed:
                return self._finished(smallest, failed, tried)
            self.hooks.say(f"failed 0 of {tried} runs in fresh processes")
            if smallest != start:
                self.keep(start)
        return self._finished(start, *(counts.get(start) or self._confirmed(start)))

    def _finished(self, case: Case, failed: int, tried: int) -> Finding:
        if failed:
            self._locate(case)
        return self.keep(case, failed, tried)

    def keep(self, case: Case, failed: int = 0, tried: int = 0) -> Finding:
        verdict = self._verdicts.get(case, self.verdict)
        finding = Finding(
            case=case,
            target=self.target,
            verdict=verdict,
            failed=failed,
            tried=tried,
            smallest=case == self._smallest,
        )
        trace = self._latest[1] if self._latest and self._latest[0] == case else None
        self.hooks.keep(finding, trace)
        return finding

    def fails(self, case: Case, run: Run) -> bool:
        """True if a run of the case shows the failure."""
        return any(self._shows(case, attempt) for attempt in attempts(run, self.hooks.judge, case, 1))

    def _shows(self, case: Case, attempt: Attempt) -> bool:
        """True if the attempt shows the failure; if so, its verdict is that of the case from now on."""
        verdict = attempt.failure(self.verdict.fingerprint)
        if verdict is not None:
            self._verdicts[case] = verdict
            self._latest = (case, attempt.trace)
            self._crashed = attempt.trace.ended.how is not Termination.DONE
        return verdict is not None

    @property
    def name(self) -> str:
        return f"{self.verdict.oracle} {self.verdict.fingerprint}"

    def _reproduced(self, candidates: Sequence[Case]) -> tuple[Case | None, int]:
        """The first candidate that fails in a fresh process, and how many runs in such processes took place."""
        hooks, tried = self.hooks, 0
        for case in candidates:
            hooks.say(f"checking {self.name} in a fresh process")
            hooks.expect((case.setup,) * self.budget.first_tries)
            with hooks.stage("confirm"):
                for attempt in attempts(hooks.run_fresh, hooks.judge, case, self.budget.first_tries):
                    tried += attempt.took_place
                    if self._shows(case, attempt):
                        return case, tried
        return None, tried

    def _shrunk(self, start: Case, run: Run, stop: float) -> Case | None:
        """The smallest case; None if no budget is left, or if the start does not fail when run in this way."""
        runs, seconds = self.budget.runs, self.budget.seconds
        if not self.budget.each_way:
            runs, seconds = runs - self.runs, stop - self.hooks.clock()
            if runs <= 0 or seconds <= 0:
                return None
        setup = start.setup

        def still_fails(case: Case) -> bool:
            self.runs += 1
            self.hooks.each_run(self.runs)
            # A run in a process of its own, and every run that fails by a crash, costs a session. Most moves leave the
            # best case's setup as it is.
            ahead = SESSIONS_AHEAD if self._crashed or run == self.hooks.run_fresh else 1
            self.hooks.expect((setup,) * ahead)
            return self.fails(case, run)

        def is_smallest(case: Case) -> None:
            self._smallest = case

        def better(case: Case) -> None:
            nonlocal setup
            setup = case.setup
            self.keep(case)

        try:
            with self.hooks.stage("shrink"):
                return shrink(
                    start,
                    still_fails,
                    runs_max=runs,
                    seconds_max=seconds,
                    on_better=better,
                    on_smallest=is_smallest,
                    clock=self.hooks.clock,
                )
        except NotFailing:
            return None

    def _confirmed(self, case: Case) -> tuple[int, int]:
        hooks, tries = self.hooks, self.budget.tries
        hooks.say(f"confirming {self.name} in {tries} fresh processes")
        hooks.expect((case.setup,) * tries)
        with hooks.stage("confirm"):
            return confirm(hooks.run_fresh, hooks.judge, case, self.verdict.fingerprint, tries)

    def _locate(self, case: Case) -> None:
        """Have the verdict say what was wrong first, as far as one more run shows it."""
        self.hooks.say(f"looking for what goes wrong first in {self.name}")
        verdict = self._verdicts.get(case, self.verdict)
        with self.hooks.stage("confirm"):
            self._verdicts[case] = annotate(verdict, self.hooks.locate(case, verdict))
