"""A fake target and everything around it, for the tests of the campaign."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.draw.rounds import EVERY, SHORT_ROUNDS, rounds
from fuzz.stats import Plan
from fuzz.triage import Hooks
from repro.cases.case import Case, Target
from repro.traces.campaign import Campaign, Progress
from repro.traces.finding import Cell, Finding, Status, Verdict, worst
from repro.traces.trace import End, RecordedArray, Termination, Trace

TARGET = Target("clean", "toy")
PLAN = Plan(target=TARGET, runner="toy", backend="triton", seed=5, cases=40, confirm_tries=3)
FAIL = Verdict(
    oracle="oracle", status=Status.FAIL, where="here", cell=Cell(step=0, buffer="b", row=1, column=2, got="3", want="0")
)
OTHER = Verdict(oracle="other", status=Status.FAIL, where="there")
PASS = Verdict(oracle="oracle", status=Status.PASS)


# Drawing takes longer than all else here, so what one test has drawn serves the others.
DRAWN: dict[tuple[int, str, str], tuple[list[Case], Iterator[Case]]] = {}


def drawn(plan: Plan = PLAN) -> Iterator[Case]:
    key = (plan.seed, plan.runner, plan.backend)
    drawn, more = DRAWN.setdefault(key, ([], rounds(*key, 8, EVERY[SHORT_ROUNDS:])))
    for number in itertools.count():
        if number == len(drawn):
            drawn.append(next(more))
        yield drawn[number]


def trace_of(case: Case, how: Termination = Termination.DONE, what: str = "") -> Trace:
    """A run in which every step was replayed."""
    seen = [RecordedArray(step=n, path="graph", name="tokens", array=np.zeros(1)) for n in range(len(case.steps))]
    seconds = {"build": 0.5, "graph": 2.0, "eager": 1.0, "record": 0.25}
    return Trace(ended=End(how=how, what=what), seen=tuple(seen), facts={"engine": "fake"}, seconds=seconds)


def padded_after_larger(case: Case) -> bool:
    """True if #23037 shows: a padded batch comes behind a larger one in the same bucket."""
    buckets = [(len(step.requests), case.setup.bucket(len(step.requests))) for step in case.steps]
    return any(b == d and a > c for (a, b), (c, d) in itertools.pairwise(buckets))


@dataclass
class World:
    """A fake target and everything around it; says in `log` what was asked of it, in order."""

    fails: Callable[[Case], Sequence[Verdict]] = lambda case: [FAIL] if padded_after_larger(case) else []
    fails_fresh: Callable[[Case], Sequence[Verdict]] | None = None
    ends: Callable[[Case], Trace] = trace_of
    seconds_a_run: float = 0.1
    coming: Callable[[], Sequence[Sequence[Case]]] = tuple
    interrupt_at: tuple[str, int] = ("", 0)
    log: list[str] = field(default_factory=list)
    ran: list[Case] = field(default_factory=list)
    session: list[Case] = field(default_factory=list)  # what the session of the last run has run, that one the last
    kept: list[Finding] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    now: float = 100.0
    fresh: bool = False
    ended: bool = False  # whether the session has

    def note(self, what: str) -> None:
        self.log.append(what)
        name, count = self.interrupt_at
        if what == name and self.log.count(what) == count:
            raise KeyboardInterrupt

    def run(self, case: Case) -> Trace:
        self.fresh = False
        self.note("run")
        self.now += self.seconds_a_run
        self.ran.append(case)
        trace = self.ends(case)
        goes_on = self.session and self.session[-1].setup == case.setup and not self.ended
        self.session = [*self.session, case] if goes_on else [case]
        self.ended = trace.ended.how is not Termination.DONE
        return trace

    def run_fresh(self, case: Case) -> Trace:
        self.fresh = True
        self.note("fresh")
        self.now += self.seconds_a_run
        return self.ends(case)

    def judge(self, case: Case, trace: Trace) -> Sequence[Verdict]:
        fails = self.fails_fresh if self.fresh and self.fails_fresh else self.fails
        return list(fails(case)) or [PASS]

    def keep(self, finding: Finding) -> str:
        self.kept.append(finding)
        self.note("keep")
        return f"{finding.verdict.fingerprint}.json"

    def hooks(self) -> Hooks:
        return Hooks(
            run=self.run,
            run_fresh=self.run_fresh,
            judge=self.judge,
            overall=worst,
            keep=self.keep,
            tell=self.progress.append,
            clock=lambda: self.now,
            history=lambda: tuple(self.session[:-1]),
        )

    def go(self, plan: Plan = PLAN, cases: Iterator[Case] | None = None, hooks: Hooks | None = None) -> Campaign:
        return campaign(plan, CaseStream(cases or drawn(plan), self.coming), hooks or self.hooks())
