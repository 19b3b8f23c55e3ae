"""The loop: draw a case, run it, judge it; keep, confirm and shrink what fails. All that is done is passed in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from fuzz.settle import Means, Settling, led_up
from fuzz.tally import Plan, Tally
from repro.case import Case, Setup
from repro.finding import Status, Verdict
from repro.record import Campaign
from repro.trace import How

# A failure that did not come back in fresh processes is tried again from another case, this many times in all.
ATTEMPTS_MAX = 3
# A setup whose first runs, so many, we could not make is left: what refuses it (a release that does not allow this
# combination yet, say) will refuse it for the rest of its cases too. Twice, as a process can fail to start for once.
UNFIT_A_SETUP = 2
# So many such runs, and no others, since the start: this target will not come to life.
UNFIT_MAX = 50


def campaign(plan: Plan, cases: Iterator[Case], means: Means, tally: Tally | None = None) -> Campaign:
    """Run cases until a limit of the plan is reached, the cases end, or someone interrupts. tally: an empty one, for
    those who want to look into it meanwhile.

    KeyboardInterrupt and OSError (a full disk, a vanished folder) end the campaign and become part of the result;
    whatever was found until then is in it and on disk.
    """
    tally = tally or Tally(plan, means.clock)
    try:
        return tally.campaign(_Loop(cases, means, tally).run())
    except KeyboardInterrupt:
        return tally.campaign("interrupted")
    except OSError as error:
        return tally.campaign("error", f"{type(error).__name__}: {error}")


class _Loop:
    """A campaign under way. Mutable."""

    def __init__(self, cases: Iterator[Case], means: Means, tally: Tally) -> None:
        self.cases = cases
        self.means = means
        self.tally = tally
        self.attempts: Counter[str] = Counter()  # how often a failure was settled, by fingerprint
        self.setup: Setup | None = None
        self.unfit = 0  # runs on this setup that could not be made, while there was no other
        self.history: list[Case] = []  # what the live session has run
        self.others: set[str] = set()  # failures that somebody else settles

    def run(self) -> str:
        """Why it stopped."""
        plan, tally = self.tally.plan, self.tally
        while True:
            if plan.cases is not None and tally.cases >= plan.cases:
                return "cases"
            if plan.seconds is not None and tally.seconds >= plan.seconds:
                return "time"
            if tally.cases >= UNFIT_MAX and tally.nothing_fits:
                return "unfit"
            case = self._next()
            if case is None:
                return "cases"
            failures, whole = self._run(case)
            for verdict in failures:
                if self._settle(case, verdict):
                    whole = False
                    if plan.stop_at_first and tally.findings[verdict.fingerprint].failed:
                        return "first finding"
            # A run that did not end well may have cost the session its life; settling may have run anything in it.
            self.history = [*self.history, case] if whole else []
            self.means.tell(tally.progress("running"))

    def _next(self) -> Case | None:
        """The next case whose setup is not known to be unfit."""
        while True:
            with self.tally.stage("draw"):
                case = next(self.cases, None)
            if case is None:
                return None
            if case.setup != self.setup:
                self.setup, self.unfit, self.history = case.setup, 0, []
            if self.unfit < UNFIT_A_SETUP:
                return case
            self.tally.skipped += 1

    def _run(self, case: Case) -> tuple[list[Verdict], bool]:
        """Run and judge one case: the failures, one of a kind, and whether the run came to its end."""
        start = self.means.clock()
        trace = self.means.run(case)
        self.tally.worker_time(trace, self.means.clock() - start)
        with self.tally.stage("judge"):
            verdicts = self.means.judge(case, trace)
        self.tally.add(case, trace, verdicts, self.means.overall(verdicts))
        not_built = trace.ended.how is How.UNFIT and trace.ended.step < 0
        # A setup that was built once stays in use, whatever happens to later runs on it.
        self.unfit = self.unfit + 1 if not_built and self.unfit >= 0 else -1
        failures = {verdict.fingerprint: verdict for verdict in verdicts if verdict.status is Status.FAIL}
        return list(failures.values()), trace.ended.how is How.DONE

    def _settle(self, case: Case, verdict: Verdict) -> bool:
        """Count a failure; settle it if it is new. It counts as new while it has never failed in a fresh process."""
        tally, fingerprint = self.tally, verdict.fingerprint
        known = tally.findings.get(fingerprint)
        if known is not None:
            tally.findings[fingerprint] = dataclasses.replace(known, cases=known.cases + 1)
            if fingerprint in self.others:
                return False
            if known.failed or not tally.plan.settle or self.attempts[fingerprint] >= ATTEMPTS_MAX:
                return False
        settling = Settling(self.means, tally, verdict, tally.cases)
        if known is None and not self.means.claim(fingerprint):
            self.others.add(fingerprint)
            settling.note(case, 0, 0)
            return False
        self.attempts[fingerprint] += 1
        settling.settle(case, led_up(self.history, case))
        self.means.tell(tally.progress("settled"))
        return True
