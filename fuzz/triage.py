"""What is done with a new failure: kept at once, confirmed in fresh processes, made small, kept again.

The best case known is on disk, and in the tally, at every moment; being interrupted loses nothing but smallness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.stats import Plan, Tally
from repro.cases.case import STEPS_MAX, Case, Setup
from repro.shrinking.confirm import confirm, failure
from repro.shrinking.first_divergence import Blame, explained
from repro.shrinking.shrink import NotFailing, shrink
from repro.traces.campaign import Found, Progress
from repro.traces.excerpt import Excerpt, excerpts
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import How, Trace

# Fresh processes in which a new failure must fail once before any time is spent on making it small.
FIRST_TRIES = 2
# How many sessions a shrinking crash asks for ahead; it is the pool that knows how many it has room for.
SESSIONS_AHEAD = 8

Run = Callable[[Case], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What known issues leave of a failing case. issues: in a word each, those that it shows. left: failures of its
    own. means: with which those are settled, where that is not as they were seen."""

    issues: tuple[str, ...] = ()
    left: tuple[Verdict, ...] = ()
    means: Means | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The functions that a campaign is given.

    run: a case in a session that may be kept from case to case. run_fresh: a case in a process of its own. judge:
    what all oracles say. overall: what their verdicts come to; UNKNOWN means that nothing was judged. keep: store a
    finding, whose better forms replace it, and return the path. tell: show progress. clock: seconds, rising. claim:
    whether a failure, by fingerprint, is ours to settle; where several work together, it is one's alone. note: told
    of every drawn case that was run, what was said of it and what that comes to. send: told, before a run, which case
    is likely to be run after it, so that its session can go on while the first one's trace is judged. expect: told
    which setups will need a new session soon, each as often as it will, so that some can be opened ahead. explain:
    which of a case's failures are known issues', and which are its own. keep_trace: told the run behind a finding
    that is stored at this path.
    """

    run: Run
    run_fresh: Run
    judge: Judge
    overall: Callable[[Sequence[Verdict]], Status]
    keep: Callable[[Finding], str]
    tell: Callable[[Progress], None]
    clock: Callable[[], float]
    claim: Callable[[str], bool] = lambda fingerprint: True
    note: Callable[[Case, Trace, Sequence[Verdict], Status], None] = lambda case, trace, verdicts, status: None
    send: Callable[[Case], None] = lambda case: None
    expect: Callable[[Sequence[Setup]], None] = lambda setups: None
    blame: Callable[[Case, Verdict], Blame] = lambda case, verdict: Blame()
    keep_trace: Callable[[str, Case, Trace], None] = lambda seed, case, trace: None
    explain: Callable[[Case, Sequence[Verdict]], Known] = lambda case, failures: Known(left=tuple(failures))


class Settling:
    """One failure on its way to a settled finding. Mutable; every better form goes to the tally."""

    def __init__(self, means: Means, tally: Tally, verdict: Verdict, at_case: int) -> None:
        self.means = dataclasses.replace(means, run=self._noting(means.run), run_fresh=self._noting(means.run_fresh))
        self.tally = tally
        self.plan: Plan = tally.plan
        self.verdict = verdict
        self.at_case = at_case
        self.at_seconds = tally.seconds
        self.fingerprint = verdict.fingerprint
        self.runs = 0
        # The verdict that goes with each failing case, for its first wrong cell; and what both paths left there.
        self._verdicts: dict[Case, Verdict] = {}
        self._crashed = False
        self._latest: tuple[Case, Trace] | None = None  # the case that failed last, and the run
        self._excerpts: dict[Case, tuple[Excerpt, ...]] = {}

    def _noting(self, run: Run) -> Run:
        """The same, and what goes wrong by our own fault meanwhile is counted."""

        def noted(case: Case) -> Trace:
            trace = run(case)
            self.tally.trouble(trace)
            return trace

        return noted

    def settle(self, case: Case, lead_up: Case | None, trace: Trace | None = None) -> None:
        """Keep, check, shrink, confirm. lead_up: the same case behind those that its session had run before. trace: of
        the run that failed."""
        self._verdicts[case] = self.verdict
        self._latest = (case, trace) if trace else None
        self.put(case, 0, 0)
        if not self.plan.settle:
            return
        start, tried = self._start([case] if lead_up is None else [case, lead_up])
        if start is None:
            self.put(case, 0, tried)
            return
        smallest = self._shrunk(start, self.means.run)
        failed, tried = self._confirmed(smallest)
        if not failed and smallest != start:
            # What the kept session had left behind took part in the failure: every run needs a process of its own.
            smallest = self._shrunk(start, self.means.run_fresh)
            failed, tried = self._confirmed(smallest)
        if failed:
            self._blame(smallest)
        self.put(smallest, failed, tried)

    def _blame(self, case: Case) -> None:
        """Have the finding say what was wrong first, as far as one more run shows it."""
        self.tell(f"looking for what goes wrong first in {self.name}")
        verdict = self._verdicts.get(case, self.verdict)
        with self.tally.stage("confirm"):
            self._verdicts[case] = explained(verdict, self.means.blame(case, verdict))

    def put(self, case: Case, failed: int, tried: int) -> None:
        """Store this form of the finding: in the tally, so that it counts whatever happens next, then on disk."""
        found = self.note(case, failed, tried)
        verdict = self._verdicts.get(case, self.verdict)
        finding = Finding(case=case, target=self.plan.target, verdict=verdict, failed=failed, tried=tried)
        with self.tally.stage("store"):
            seed = self.means.keep(finding)
            if self._latest and self._latest[0] == case:
                self.means.keep_trace(seed, *self._latest)
        self.tally.findings[self.fingerprint] = dataclasses.replace(found, seed=seed)

    def note(self, case: Case, failed: int, tried: int) -> Found:
        """Put this form of the finding into the tally alone."""
        verdict = self._verdicts.get(case, self.verdict)
        known = self.tally.findings.get(self.fingerprint)
        found = Found(
            target=str(self.plan.target),
            fingerprint=self.fingerprint,
            oracle=verdict.oracle,
            where=verdict.where,
            detail=verdict.detail,
            seed=known.seed if known else "",
            failed=failed,
            tried=tried,
            cases=known.cases if known else 1,
            at_case=known.at_case if known else self.at_case,
            at_seconds=known.at_seconds if known else self.at_seconds,
            done_seconds=self.tally.seconds,
            shrink_runs=self.runs,
            case=case,
            cell=verdict.cell,
            excerpts=self._excerpts.get(case, ()),
        )
        self.tally.findings[self.fingerprint] = found
        return found

    def _start(self, candidates: Sequence[Case]) -> tuple[Case | None, int]:
        """The first candidate that fails in a fresh process, and how many runs in such processes took place."""
        tried = 0
        for case in candidates:
            self.means.expect((case.setup,) * FIRST_TRIES)
            for _ in range(FIRST_TRIES):
                self.tell(f"checking {self.name} in a fresh process")
                with self.tally.stage("confirm"):
                    trace = self.means.run_fresh(case)
                    tried += trace.ended.how.took_place
                    if self._fails(case, trace):
                        return case, tried
        return None, tried

    def _shrunk(self, case: Case, run: Run) -> Case:
        best = case
        # Every run that fails by a crash needs another session, as every fresh run does.
        each = SESSIONS_AHEAD if run is self.means.run_fresh or self._crashed else 1

        def still_fails(smaller: Case) -> bool:
            self.runs += 1
            self.tell(f"shrinking {self.name}, run {self.runs}")
            # Most moves leave the setup as it is, so that the best one's sessions will be of use.
            self.means.expect((best.setup,) * each)
            return self._fails(smaller, run(smaller))

        def better(smaller: Case) -> None:
            nonlocal best
            best = smaller
            self.put(smaller, 0, 0)

        try:
            with self.tally.stage("shrink"):
                return shrink(
                    case,
                    still_fails,
                    runs_max=self.plan.shrink_runs,
                    seconds_max=self.plan.shrink_seconds,
                    on_better=better,
                )
        except NotFailing:
            # It failed elsewhere and does not fail here: it stays as large as it is, and is counted as it is.
            return case

    def _confirmed(self, case: Case) -> tuple[int, int]:
        self.tell(f"confirming {self.name} in {self.plan.confirm_tries} fresh processes")
        self.means.expect((case.setup,) * self.plan.confirm_tries)
        with self.tally.stage("confirm"):
            return confirm(self.means.run_fresh, self.means.judge, case, self.fingerprint, self.plan.confirm_tries)

    def _fails(self, case: Case, trace: Trace) -> bool:
        """Whether this run of the case failed in the same way; if so, with which verdict is remembered."""
        verdict = failure(self.means.judge(case, trace), self.fingerprint)
        if verdict is not None:
            self._verdicts[case] = verdict
            self._latest = (case, trace)
            self._crashed = trace.ended.how is not How.DONE
            self._excerpts[case] = excerpts(trace, verdict.cell)
        return verdict is not None

    @property
    def name(self) -> str:
        return f"{self.verdict.oracle} {self.fingerprint}"

    def tell(self, doing: str) -> None:
        self.means.tell(self.tally.progress(doing))


def led_up(history: Sequence[Case], case: Case) -> Case | None:
    """The case behind as many of the cases before it, on the same setup, as fit into one; None if there are none."""
    steps = case.steps
    for earlier in reversed(history):
        if len(earlier.steps) + len(steps) > STEPS_MAX:
            break
        steps = (*earlier.steps, *steps)
    return dataclasses.replace(case, steps=steps) if len(steps) > len(case.steps) else None
