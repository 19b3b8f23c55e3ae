"""The loop: draw a case, run it, judge it; triage what fails. Everything that is done is passed in as a function."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from fuzz.case_source import CaseStream
from fuzz.causes import Causes, by_cause
from fuzz.draw.rounds import CASES_ANNOUNCED
from fuzz.stats import CampaignStats, Plan
from fuzz.triage import CampaignTriage, Hooks, led_up
from fuzz.waited import Waited
from repro.cases.case import Case, Setup
from repro.commands.interrupts import Limit, held, let_in, limited
from repro.traces.campaign import Campaign, Transition
from repro.traces.finding import ENDED, REFERENCE, Status, Verdict, by_oracle
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import Termination, Trace

# A failure that did not come back in fresh processes is tried again from another case, this many times in all.
ATTEMPTS_MAX = 3
# A setup is left after this many first runs that could not be made: what refuses it will refuse its other cases too.
# Twice, as a process can fail to start for once; once where it is known to be impossible (a release that does not allow
# this combination yet, say).
REFUSALS_A_SETUP = 2
# A target is left after this many such runs, and no others, since the start.
REFUSALS_MAX = 50
# So many cases are drawn while one is in flight: sessions of one setup may run them side by side.
DRAWN_AHEAD = 3
# More of a setup that has had so many cases: three sessions run them by then (runners/processes/pool.py), and as they
# are judged in order, a long one would keep the other sessions waiting.
MANY_CASES, DRAWN_AHEAD_OF_MANY = 32, 5
# Seconds that triage may go on once the time is up; then it is left as an interrupt leaves it, with all that is stored.
OVERTIME_S = 60.0
# A campaign with a limit of time leaves a setup behind so many cases in a row that brought nothing new on it, no
# transition and no state, once those that were announced have been run. On releases with known bugs eight made 58 % of
# the cases of rounds of 32, and met 95 % of what failed on their setups (118 of 124, four pairs of release and runner);
# sixteen made 82 %, and met 98 %.
STALE_CASES = 8


def campaign(plan: Plan, source: CaseStream, hooks: Hooks, stats: CampaignStats | None = None) -> Campaign:
    """Run cases until a limit of the plan is reached, the cases end, or a person interrupts.

    stats: empty ones, for callers that read them meanwhile.

    KeyboardInterrupt and OSError (a full disk, a vanished folder) end the campaign and become part of the result;
    all findings until then are in it and on disk. So does a limit of time that is over by OVERTIME_S.
    """
    stats, limit = stats or CampaignStats(plan, hooks.clock), Limit()
    try:
        with let_in(), limited() as limit:
            stopped = _Loop(source, hooks, stats, limit).run()
        return stats.campaign(stopped)
    except KeyboardInterrupt:
        return stats.campaign("time" if limit.rang else "interrupted")
    except OSError as error:
        return stats.campaign("error", f"{type(error).__name__}: {error}")


@dataclass(slots=True, kw_only=True)
class _SetupInUse:
    """The state of the setup whose cases are run. Mutable. built: True if a session was opened with it; it then
    stays in use, whatever happens to later runs. refusals: runs before that which could not be made. met: the
    transitions and states of its cases; ran: how many; stale: those since the last that met a new one."""

    setup: Setup
    built: bool = False
    refusals: int = 0
    met: set[Transition | str] = field(default_factory=set)
    ran: int = 0
    stale: int = 0

    @property
    def is_refused(self) -> bool:
        return not self.built and self.refusals >= REFUSALS_A_SETUP

    @property
    def is_exhausted(self) -> bool:
        return self.stale >= STALE_CASES and self.ran >= CASES_ANNOUNCED

    def meet(self, met: frozenset[Transition | str]) -> None:
        self.ran += 1
        self.stale = self.stale + 1 if met <= self.met else 0
        self.met |= met

    def count(self, trace: Trace) -> None:
        ended = trace.ended
        if ended.step >= 0 or (ended.how is not Termination.RAISED and ended.how.took_place):
            self.built = True
        elif not self.built:
            self.refusals += REFUSALS_A_SETUP if ended.how is Termination.UNSUPPORTED else 1


def _one_of_each(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The failures among them, one of each kind."""
    return list({verdict.fingerprint: verdict for verdict in verdicts if verdict.status is Status.FAIL}.values())


class _Loop:
    """A campaign that is running. Mutable."""

    def __init__(self, source: CaseStream, hooks: Hooks, stats: CampaignStats, limit: Limit) -> None:
        self.source, self.limit = source, limit
        self.hooks = hooks
        self.stats = stats
        self.upcoming: deque[Case] = deque()  # the next cases, which were drawn while another was in flight
        self.in_use: _SetupInUse | None = None  # until the first case
        self.attempts: Counter[str] = Counter()  # how often a failure was triaged, by fingerprint
        self.causes = Causes()
        self.waited = Waited(hooks)
        self.others: set[str] = set()  # failures that another process triages
        self.came_back: dict[str, set[str]] = {}  # what failed with a failure in its triage
        self.started = 0.0  # when the first case had ended: a plan's seconds are not those of imports

    def run(self) -> str:
        """Why it stopped."""
        plan, stats = self.stats.plan, self.stats
        self.hooks.tell(stats.progress("opening the first session"))
        while True:
            if plan.cases is not None and stats.cases >= plan.cases:
                return "cases"
            if plan.seconds is not None and stats.seconds - self.started >= plan.seconds:
                return "time"
            if stats.cases >= REFUSALS_MAX and stats.nothing_runs:
                return "cannot run"
            case = self.upcoming.popleft() if self.upcoming else self._draw()
            if case is None:
                return "cases"
            in_use = self._setup_of(case)
            if in_use.is_refused:
                stats.skipped += 1
            elif self._case(case, in_use):
                return "first finding"

    def _draw(self) -> Case | None:
        with self.stats.stage("draw"):
            return self.source.next_case()

    def _setup_of(self, case: Case) -> _SetupInUse:
        if self.in_use is None or self.in_use.setup != case.setup:
            self.in_use = _SetupInUse(setup=case.setup)
            self._foresee()
        return self.in_use

    def _foresee(self) -> None:
        """Say which sessions come next: of the round that has been drawn of already, too."""
        if self.hooks.foresee is None:
            return
        begun = [[case] for case in self.upcoming if self.in_use is None or case.setup != self.in_use.setup]
        with self.stats.stage("draw"):
            rounds = self.source.coming()
        self.hooks.foresee([*begun, *rounds])

    def _case(self, case: Case, in_use: _SetupInUse) -> bool:
        """Run a case and triage its failures; whether the campaign ends with one of them."""
        plan, stats = self.stats.plan, self.stats
        if in_use.built:
            self._send_ahead(case, DRAWN_AHEAD if in_use.ran < MANY_CASES else DRAWN_AHEAD_OF_MANY)
        trace, verdicts, met = self._run(case)
        in_use.meet(met)
        ran = RunWithPast(case=case, trace=trace, past=self.hooks.past(), history=self.hooks.history())
        in_use.count(trace)
        late = [(late, self.hooks.judge(late.case, late.trace)) for late in self.hooks.late()]
        for failed, judged in (*late, (ran, verdicts)):
            if self._failures(failed, judged):
                return True
        if plan.seconds is not None and in_use.is_exhausted and self._is_next(case.setup):
            self.source.leave()
        self.hooks.tell(stats.progress("running"))
        return False

    def _failures(self, ran: RunWithPast, verdicts: Sequence[Verdict]) -> bool:
        """Triage what a run failed by, cause by cause; whether the campaign ends with one of them."""
        failures = _one_of_each(verdicts)
        if not failures:
            return False
        lead_up = led_up(ran.history, ran.case)
        passed = {oracle for oracle, status in by_oracle(verdicts).items() if status is Status.PASS}
        with self.stats.stage("confirm"):
            exact = [self.waited.exact([ran.case, lead_up], ran.trace.ended, verdict) for verdict in failures]
        causes = by_cause(self._unexplained(ran.case, exact))
        return any(self._cause(ran, lead_up, failed, passed) for failed in causes)

    def _cause(
        self, ran: RunWithPast, lead_up: Case | None, failed: tuple[Verdict, ...], passed: Collection[str]
    ) -> bool:
        """Triage the first of these failures that comes back, of which the others are consequences; whether the
        campaign ends with it."""
        stats = self.stats
        home = self.causes.of(failed[0], passed)
        if home != failed[0].fingerprint:
            self._count(home, failed)
            return False
        for verdict in failed:
            others = tuple(other for other in failed if other != verdict)
            triaged = self._failure(ran, lead_up, verdict, others)
            finding = stats.findings[verdict.fingerprint]
            if finding.failed or verdict.fingerprint in self.others or not stats.plan.triage:
                self.causes.put(verdict, [other for other in others if self._follows(other, verdict)])
                return bool(triaged and stats.plan.stop_at_first and finding.failed)
        return False

    def _follows(self, other: Verdict, cause: Verdict) -> bool:
        """True if a failure beside a cause may be taken for its consequence in other cases, too: it came back with it,
        or only another process can know. A session's end is not guessed at: its process may have been killed."""
        if cause.fingerprint in self.came_back:
            return other.fingerprint in self.came_back[cause.fingerprint]
        return other.oracle != ENDED

    def _count(self, fingerprint: str, failed: Iterable[Verdict]) -> None:
        """One more case of a finding, with what failed besides."""
        finding = self.stats.findings[fingerprint]
        names = (verdict.name for verdict in failed if verdict.fingerprint != fingerprint)
        consequences = tuple(dict.fromkeys([*finding.consequences, *names]))
        self.stats.findings[fingerprint] = dataclasses.replace(
            finding, cases=finding.cases + 1, consequences=consequences
        )

    def _is_next(self, setup: Setup) -> bool:
        """True if the last case that was drawn is of this setup."""
        return not self.upcoming or self.upcoming[-1].setup == setup

    def _send_ahead(self, case: Case, most: int) -> None:
        """Have sessions go on with the next cases, too, if these are certain to be the next and within the limit. If
        this one ends badly, those that its session had are run again when their turn comes."""
        plan, stats = self.stats.plan, self.stats
        while len(self.upcoming) < most and self._is_next(case.setup):
            in_flight = 1 + len(self.upcoming)
            if plan.cases is not None and stats.cases + in_flight >= plan.cases:
                break
            drawn = self._draw()
            if drawn is None:
                break
            self.upcoming.append(drawn)
        self.hooks.send([upcoming for upcoming in self.upcoming if upcoming.setup == case.setup])

    def _run(self, case: Case) -> tuple[Trace, Sequence[Verdict], frozenset[Transition | str]]:
        """Run and judge one case: the trace, the verdicts, and the transitions and states that it met."""
        start = self.hooks.clock()
        trace = (self.hooks.run_drawn or self.hooks.run)(case)
        self.stats.worker_time(trace, self.hooks.clock() - start)
        with self.stats.stage("judge"):
            verdicts = self.hooks.judge(case, trace)
        status = self.hooks.overall(verdicts)
        if not self.stats.cases:
            self._begin()
        with held():  # no interrupt leaves a case counted that the ledger lacks
            met = self.stats.add(case, trace, verdicts, status)
            self.hooks.note(case, trace, verdicts, status)
        return trace, verdicts, met

    def _begin(self) -> None:
        """The first case has ended: time counts from now on."""
        self.started = self.stats.seconds
        if self.stats.plan.seconds is not None:
            self.limit.after(self.stats.plan.seconds + OVERTIME_S)

    def _unexplained(self, case: Case, failures: Sequence[Verdict]) -> Sequence[Verdict]:
        """The failures that known issues leave. The case counts once, for the first of its issues."""
        with self.stats.stage("known"):
            explained = self.hooks.explain(case, failures)
        self.stats.known.update(map(str, explained.issues[:1]))
        # The reference is asked in more steps there than of a drawn case.
        for verdict in explained.only_mended:
            if verdict.oracle == REFERENCE:
                continue
            if verdict.name not in self.stats.only_mended:
                self.stats.only_mended_seeds[verdict.name] = self.hooks.keep_mended(case, verdict)
            self.stats.only_mended[verdict.name] += 1
        if explained.doubt:
            self.stats.doubt(f"known issues: {explained.doubt}")
        return explained.left

    def _failure(self, ran: RunWithPast, lead_up: Case | None, verdict: Verdict, others: tuple[Verdict, ...]) -> bool:
        """Count a failure; triage it if it is new, and say whether that was done. It counts as new while it has never
        failed in a fresh process. lead_up: the case behind those that its session had run. others: its consequences."""
        stats, fingerprint = self.stats, verdict.fingerprint
        finding = stats.findings.get(fingerprint)
        if finding is not None:
            self._count(fingerprint, others)
            if fingerprint in self.others:
                return False
            if finding.failed or not stats.plan.triage or self.attempts[fingerprint] >= ATTEMPTS_MAX:
                return False
        waiting = self.waited.hooks(verdict)
        triage = CampaignTriage(waiting or self.hooks, stats, verdict, ran.past, others)
        if finding is None and not self.hooks.claim(fingerprint):
            self.others.add(fingerprint)
            triage.note(ran.case)
            return False
        self.attempts[fingerprint] += 1
        # What came out where every launch is waited for was seen in a run of its own, not in this one.
        triage.run(ran.case, lead_up, None if waiting else ran.trace)
        self.came_back[fingerprint] = triage.came_back
        self._foresee()
        self.hooks.tell(stats.progress("triaged"))
        return True
