"""The loop: draw a case, run it, judge it; keep, confirm and shrink what fails. All that is done is passed in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from fuzz.stats import Plan, Tally
from fuzz.triage import Known, Means, Settling, led_up
from repro.cases.case import Case, Setup
from repro.traces.campaign import Campaign
from repro.traces.finding import Status, Verdict
from repro.traces.trace import How, Trace

# A failure that did not come back in fresh processes is tried again from another case, this many times in all.
ATTEMPTS_MAX = 3
# A setup whose first runs, so many, we could not make is left: what refuses it (a release that does not allow this
# combination yet, say) will refuse it for the rest of its cases too. Twice, as a process can fail to start for once.
REFUSALS_A_SETUP = 2
# So many such runs, and no others, since the start: this target will not come to life.
REFUSALS_MAX = 50


def campaign(
    plan: Plan,
    cases: Iterator[Case | None],
    means: Means,
    tally: Tally | None = None,
    coming: Callable[[], Sequence[Setup]] = tuple,
) -> Campaign:
    """Run cases until a limit of the plan is reached, the cases end, or someone interrupts.

    cases: a None among them stands for one that cannot be told before the case under way has been counted. tally: an
    empty one, for those who want to look into it meanwhile. coming: which setups the next rounds will have.

    KeyboardInterrupt and OSError (a full disk, a vanished folder) end the campaign and become part of the result;
    whatever was found until then is in it and on disk.
    """
    tally = tally or Tally(plan, means.clock)
    try:
        return tally.campaign(_Loop(cases, means, tally, coming).run())
    except KeyboardInterrupt:
        return tally.campaign("interrupted")
    except OSError as error:
        return tally.campaign("error", f"{type(error).__name__}: {error}")


class _Loop:
    """A campaign under way. Mutable."""

    def __init__(
        self, cases: Iterator[Case | None], means: Means, tally: Tally, coming: Callable[[], Sequence[Setup]]
    ) -> None:
        self.cases = cases
        self.coming = coming
        self.drawn: Case | None = None  # the next case, drawn while another was under way
        self.means = means
        self.tally = tally
        self.attempts: Counter[str] = Counter()  # how often a failure was settled, by fingerprint
        self.setup: Setup | None = None
        self.refusals = 0  # runs on this setup that could not be made, while there was no other
        self.history: list[Case] = []  # what the live session has run
        self.failed: Trace | None = None  # the run under way, if it failed
        self.others: set[str] = set()  # failures that somebody else settles

    def run(self) -> str:
        """Why it stopped."""
        plan, tally = self.tally.plan, self.tally
        while True:
            if plan.cases is not None and tally.cases >= plan.cases:
                return "cases"
            if plan.seconds is not None and tally.seconds >= plan.seconds:
                return "time"
            if tally.cases >= REFUSALS_MAX and tally.nothing_runs:
                return "cannot run"
            case = self._next()
            if case is None:
                return "cases"
            failures, whole = self._run(case)
            known = self._known(case, failures)
            for verdict in known.left:
                if self._settle(case, verdict, known.means or self.means):
                    whole = False
                    if plan.stop_at_first and tally.findings[verdict.fingerprint].failed:
                        return "first finding"
            # A run that did not end well may have cost the session its life; settling may have run anything in it.
            self.history = [*self.history, case] if whole else []
            self.means.tell(tally.progress("running"))

    def _next(self) -> Case | None:
        """The next case whose setup is not known to be refused."""
        while True:
            case = self._drawn()
            if case is None:
                return None
            self.drawn = None
            if case.setup != self.setup:
                self.setup, self.refusals, self.history = case.setup, 0, []
                self.means.expect(self.coming())
            if self.refusals < REFUSALS_A_SETUP:
                return case
            self.tally.skipped += 1

    def _drawn(self) -> Case | None:
        """The next case, which stays the next one until it is taken; None if there is none, or none yet."""
        if self.drawn is None:
            with self.tally.stage("draw"):
                self.drawn = next(self.cases, None)
        return self.drawn

    def _send_ahead(self, case: Case) -> None:
        """Have the session go on with the next case, too, if that is certain to be the next: not before the setup is
        known to fit, and not beyond the limit. If this one ends badly, it is run again when its turn comes."""
        tally = self.tally
        if self.refusals >= 0 or (tally.plan.cases is not None and tally.cases + 1 >= tally.plan.cases):
            return
        tally.under_way = 1
        upcoming = self._drawn()
        tally.under_way = 0
        if upcoming and upcoming.setup == case.setup:
            self.means.send(upcoming)

    def _run(self, case: Case) -> tuple[list[Verdict], bool]:
        """Run and judge one case: the failures, one of a kind, and whether the run came to its end."""
        self._send_ahead(case)
        start = self.means.clock()
        trace = self.means.run(case)
        self.tally.worker_time(trace, self.means.clock() - start)
        with self.tally.stage("judge"):
            verdicts = self.means.judge(case, trace)
        status = self.means.overall(verdicts)
        self.tally.add(case, trace, verdicts, status)
        self.means.note(case, trace, verdicts, status)
        ended = trace.ended
        not_built = ended.step < 0 and (ended.how is How.RAISED or not ended.how.took_place)
        # A setup that was built once stays in use, whatever happens to later runs on it.
        self.refusals = self.refusals + 1 if not_built and self.refusals >= 0 else -1
        failures = {verdict.fingerprint: verdict for verdict in verdicts if verdict.status is Status.FAIL}
        self.failed = trace if failures else None
        return list(failures.values()), trace.ended.how is How.DONE

    def _known(self, case: Case, failures: Sequence[Verdict]) -> Known:
        """What known issues leave of these failures."""
        if not failures:
            return Known()
        with self.tally.stage("known"):
            known = self.means.explain(case, failures)
        self.tally.known.update(known.issues)
        return known

    def _settle(self, case: Case, verdict: Verdict, means: Means) -> bool:
        """Count a failure; settle it if it is new. It counts as new while it has never failed in a fresh process."""
        tally, fingerprint = self.tally, verdict.fingerprint
        known = tally.findings.get(fingerprint)
        if known is not None:
            tally.findings[fingerprint] = dataclasses.replace(known, cases=known.cases + 1)
            if fingerprint in self.others:
                return False
            if known.failed or not tally.plan.settle or self.attempts[fingerprint] >= ATTEMPTS_MAX:
                return False
        settling = Settling(means, tally, verdict, tally.cases)
        if known is None and not means.claim(fingerprint):
            self.others.add(fingerprint)
            settling.note(case, 0, 0)
            return False
        self.attempts[fingerprint] += 1
        # What known issues leave was seen elsewhere, in a run of its own.
        settling.settle(case, led_up(self.history, case), self.failed if means is self.means else None)
        self.means.expect(self.coming())
        self.means.tell(tally.progress("settled"))
        return True
