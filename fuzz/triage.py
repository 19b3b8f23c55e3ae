"""Triage within a campaign: what one failure comes to is counted in the campaign's statistics, form by form.

The best case known is on disk, and in the statistics, at every moment; being interrupted loses nothing but smallness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.stats import CampaignStats
from repro.cases.case import STEPS_MAX, Case, Setup
from repro.ledger.explain import Explained
from repro.shrinking.confirm import Judge, Run
from repro.shrinking.first_divergence import FirstDivergence
from repro.shrinking.triage import Budget, Triage, TriageHooks
from repro.traces.campaign import CampaignFinding, Progress
from repro.traces.device_errors import device_fault
from repro.traces.excerpt import Excerpt, excerpts
from repro.traces.finding import ENDED, Finding, Status, Verdict
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import Trace

# Fresh processes in which a new failure must fail once before any time is spent on making it small.
FIRST_TRIES = 2
# What begins the flag of a failure that no fresh process showed.
AFTER_OTHERS = "Only after other setups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions that a campaign is given."""

    run: Run  # a case in a session that may be kept from case to case
    run_fresh: Run  # a case in a process of its own
    judge: Judge  # the verdicts of all oracles
    overall: Callable[[Sequence[Verdict]], Status]  # the status of a run; UNKNOWN means that nothing was judged
    keep: Callable[[Finding], str]  # store a finding, whose better forms replace it; the path
    tell: Callable[[Progress], None]  # show progress
    clock: Callable[[], float]  # seconds, rising
    # As run, of a drawn case: the reference is asked in steps of a schedule, elsewhere in all. None: as run.
    run_drawn: Run | None = None
    # Whether this process triages a failure, by fingerprint; of several that share a campaign, one does.
    claim: Callable[[str], bool] = lambda fingerprint: True
    # A drawn case was run: its trace, verdicts and status.
    note: Callable[[Case, Trace, Sequence[Verdict], Status], None] = lambda case, trace, verdicts, status: None
    # The cases that are likely to be run after the next one, in order, so that sessions can go on with them meanwhile.
    send: Callable[[Sequence[Case]], None] = lambda upcoming: None
    # Setups that will need a new session soon, each as often as it will, so that some can be opened ahead.
    expect: Callable[[Sequence[Setup]], None] = lambda setups: None
    # The same, by the first cases that each of them will be asked for, in order; None where nothing is opened ahead.
    foresee: Callable[[Sequence[Sequence[Case]]], None] | None = None
    locate: Callable[[Case, Verdict], FirstDivergence] = lambda case, verdict: (
        FirstDivergence()
    )  # where a confirmed failure begins
    # Setups that the process of the last run had served before the case's own.
    past: Callable[[], tuple[Setup, ...]] = tuple
    # The same in processes in which every launch is waited for; None where nothing is asynchronous.
    waiting: Callable[[], Hooks] | None = None
    # The bad accesses of a case in a fresh process under a memory checker, in words; None where there is no checker.
    check_memory: Callable[[Case], Sequence[str]] | None = None
    # Failures of earlier cases that came to light in the last run.
    late: Callable[[], Sequence[RunWithPast]] = tuple
    # The latest cases that the session of the last run had run before the case.
    history: Callable[[], tuple[Case, ...]] = tuple
    keep_trace: Callable[[str, Case, Trace], None] = lambda seed, case, trace: None  # of the finding stored at a path
    # Which of these failures known issues explain.
    explain: Callable[[Case, Sequence[Verdict]], Explained] = lambda case, failures: Explained(left=tuple(failures))
    # Store a case that fails so only with known issues mended; the path.
    keep_mended: Callable[[Case, Verdict], str] = lambda case, failure: ""


def unexplained(judge: Judge, explain: Callable[[Case, Sequence[Verdict]], Explained]) -> Judge:
    """The same judge without failures that known issues explain: what is shrunk by it does not drift towards them."""

    def judged(case: Case, trace: Trace) -> Sequence[Verdict]:
        verdicts = judge(case, trace)
        failures = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
        left = explain(case, failures).left if failures else ()
        return [verdict for verdict in verdicts if verdict.status is not Status.FAIL or verdict in left]

    return judged


class CampaignTriage:
    """One failure in a campaign. Mutable; every better form goes to the statistics, then to disk."""

    def __init__(
        self,
        hooks: Hooks,
        stats: CampaignStats,
        verdict: Verdict,
        past: tuple[Setup, ...] = (),
        consequences: Sequence[Verdict] = (),
    ) -> None:
        """past: setups that the process had served before, in which the failure was seen. consequences: what failed
        behind it in its case."""
        self._hooks, self._stats, self._past = hooks, stats, past
        self._consequences = tuple(consequence.name for consequence in consequences)
        self.came_back: set[str] = set()  # fingerprints of what failed where it failed again
        self._lead_up: Case | None = None
        self._at_case, self._at_seconds = stats.cases, stats.seconds
        self._excerpts: dict[Case, tuple[Excerpt, ...]] = {}
        self._accesses: dict[Case, Sequence[str] | None] = {}
        plan = stats.plan
        budget = Budget(
            runs=plan.shrink_runs,
            seconds=plan.shrink_seconds,
            tries=plan.confirm_tries,
            first_tries=FIRST_TRIES,
            each_way=True,
        )
        triage_hooks = TriageHooks(
            run=self._counted(hooks.run),
            run_fresh=self._counted(hooks.run_fresh),
            judge=self._noted(unexplained(hooks.judge, hooks.explain)),
            keep=self._keep,
            say=self._say,
            each_run=lambda runs: self._say(f"shrinking {self._triage.name}, run {runs}"),
            locate=hooks.locate,
            expect=hooks.expect,
            stage=stats.stage,
            clock=hooks.clock,
        )
        self._triage = Triage(triage_hooks, plan.target, verdict, budget)

    def run(self, case: Case, lead_up: Case | None, trace: Trace | None = None) -> None:
        """Keep, check, shrink, confirm. lead_up: the same case behind those that its session had run before. trace: of
        the run that failed."""
        self._lead_up = lead_up
        if self._stats.plan.triage:
            self._triage.confirm_and_minimize([case] if lead_up is None else [case, lead_up], trace)
        else:
            self._keep(self._seen_once(case), trace)

    def note(self, case: Case) -> None:
        """Put the failure into the statistics alone: another process stores it."""
        self._put(dataclasses.replace(self._seen_once(case), consequences=self._consequences))

    def _seen_once(self, case: Case) -> Finding:
        return Finding(case=case, target=self._stats.plan.target, verdict=self._triage.verdict, failed=0, tried=0)

    def _counted(self, run: Run) -> Run:
        """The same, with errors of the harness counted."""

        def counted(case: Case) -> Trace:
            trace = run(case)
            self._stats.triage_run(trace)
            return trace

        return counted

    def _noted(self, judge: Judge) -> Judge:
        """The same, with failures remembered."""

        def noted(case: Case, trace: Trace) -> Sequence[Verdict]:
            verdicts = judge(case, trace)
            failed = {verdict.fingerprint for verdict in verdicts if verdict.status is Status.FAIL}
            if self._triage.verdict.fingerprint in failed:
                self.came_back |= failed
            return verdicts

        return noted

    def _keep(self, finding: Finding, trace: Trace | None) -> None:
        """Store this form: in the statistics first, so that it counts whatever happens next, then on disk."""
        finding = dataclasses.replace(finding, consequences=self._consequences)
        if finding.tried and not finding.failed:
            finding = seen_once(finding, self._past, self._lead_up, self._checked(finding))
        if trace is not None:
            self._excerpts[finding.case] = excerpts(trace, finding.verdict.cell)
        recorded = self._put(finding)
        with self._stats.stage("store"):
            seed = self._hooks.keep(finding)
            if trace is not None:
                self._hooks.keep_trace(seed, finding.case, trace)
        self._stats.findings[recorded.fingerprint] = dataclasses.replace(recorded, seed=seed)

    def _checked(self, finding: Finding) -> Sequence[str] | None:
        """The bad accesses of a device error's case under a memory checker; None if no checker ran it. A kernel that
        reads behind a buffer fails only where nothing is mapped behind it: a checker sees it everywhere."""
        case, check = finding.case, self._hooks.check_memory
        if check is None or finding.verdict.oracle != ENDED or not device_fault(finding.verdict.where):
            return None
        if case not in self._accesses:
            self._say(f"checking the memory accesses of {self._triage.name}")
            self._accesses[case] = check(case)
        return self._accesses[case]

    def _put(self, finding: Finding) -> CampaignFinding:
        fingerprint = finding.verdict.fingerprint
        known = self._stats.findings.get(fingerprint)
        consequences = dict.fromkeys([*(known.consequences if known else ()), *finding.consequences])
        recorded = CampaignFinding.of(
            dataclasses.replace(finding, seed=known.seed if known else "", consequences=tuple(consequences)),
            cases=known.cases if known else 1,
            at_case=known.at_case if known else self._at_case,
            at_seconds=known.at_seconds if known else self._at_seconds,
            done_seconds=self._stats.seconds,
            shrink_runs=self._triage.runs,
            excerpts=self._excerpts.get(finding.case, ()),
        )
        self._stats.findings[fingerprint] = recorded
        return recorded

    def _say(self, doing: str) -> None:
        self._hooks.tell(self._stats.progress(doing))


def seen_once(
    finding: Finding, past: tuple[Setup, ...], lead_up: Case | None, accesses: Sequence[str] | None = None
) -> Finding:
    """A failure that no fresh process showed, with what went before it. In a process that had served other setups it
    may be real, as a server that was reconfigured has a past as well, and it says so. accesses: those that a memory
    checker reports of the case by itself; None if no checker ran it."""
    texts, fresh = [finding.verdict.detail], f"none of {finding.tried} fresh ones"
    if past:
        texts.append(f"{AFTER_OTHERS}, {len(past)} of them in the same process, and in {fresh}.")
    if lead_up:
        steps = len(lead_up.steps) - len(finding.case.steps)
        texts.append(f"Seen in a process that had run {steps} steps before it, and in {fresh}, with these or without.")
    if accesses is not None:
        texts.append(f"Under a memory checker, by itself: {'; '.join(accesses) or 'no bad access'}.")
    verdict = dataclasses.replace(finding.verdict, detail=" ".join(texts).strip())
    return dataclasses.replace(finding, verdict=verdict, after=past, lead_up=lead_up)


def led_up(history: Sequence[Case], case: Case) -> Case | None:
    """The case behind as many of the cases before it, on the same setup, as fit into one; None if there are none."""
    steps = case.steps
    for earlier in reversed(history):
        if len(earlier.steps) + len(steps) > STEPS_MAX:
            break
        steps = (*earlier.steps, *steps)
    return dataclasses.replace(case, steps=steps) if len(steps) > len(case.steps) else None
