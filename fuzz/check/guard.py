"""A guard for a change of sglang: a fixed plan of cases over all runners, whatever the time.

A failure that the change brings makes it red; one that its base shows in the same case, or that known issues explain,
does not.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.check.causes import Cause, Failing, causes
from fuzz.check.location import Names
from fuzz.check.plan import Item, Pair, Plan
from fuzz.check.written import Written
from repro.cases import codec
from repro.cases.case import Case, Setup, Target, problems
from repro.cases.codec import Seed
from repro.cases.releases import expected
from repro.commands.verbs import spelled
from repro.shrinking.replay import trouble
from repro.shrinking.store import about
from repro.shrinking.triage import Budget, Triage, TriageHooks
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import Termination, Trace

# Nothing is made small but by leaving out the steps behind the failure.
ONE_FRESH_RUN = Budget(runs=0, seconds=0.0, tries=0)
# Cases of a cause that are tried in fresh processes, until one fails there.
TRIED = 3
# How a run ends if a machine is busy or lacks memory, too: it is made again before it is believed.
_AGAIN = (Termination.ERROR, Termination.HUNG)
# How often it is said how far it is: in items of the plan, and in cases that are compared.
PROGRESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways to run cases on one target. expect: the setups that come next; foresee: the same by their cases, which
    are run ahead. send: the cases that follow the next one on its setup. renew: take note of how the last run failed,
    whose process serves no other setup if it may have harmed itself."""

    run: Callable[[Case], Trace]
    run_fresh: Callable[[Case], Trace]
    expect: Callable[[Sequence[Setup]], None]
    foresee: Callable[[Sequence[Sequence[Case]]], None]
    send: Callable[[Sequence[Case]], None]
    renew: Callable[[Sequence[Verdict]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The failures of a case that the change brings, and why the others are not its. general: True if that holds for
    the same failures of other cases. doubt: why nothing can be said; then none is in `brought`."""

    brought: tuple[Verdict, ...] = ()
    why: str = ""
    general: bool = False
    doubt: str = ""


# Of a failing case. With it come those that may be asked about later, in order, so that they can be run ahead.
Compare = Callable[[Failing, Sequence[Failing]], Compared]


@dataclass(slots=True, kw_only=True)
class Checked:
    """The results of a check. Mutable: they gather. against: what failures are held against, in words. done: items of
    the plan that were run. judged: cases by pair. refused: items that this release cannot have, errors: pairs that the
    harness could not run, each with the reason. doubtful: items of which no case could be judged. old: failures that
    are not the change's, with the reason. unsure: failures of unknown origin. gone: seeds that pass where they
    used to fail. changed: what each changed file touches, where that is asked. stopped: whether it was interrupted.
    names: those that a reader on another machine has."""

    target: Target
    plan: Plan
    against: str = ""
    release: str = ""
    done: int = 0
    judged: Counter[Pair] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    errors: dict[Pair, str] = field(default_factory=dict)
    doubtful: list[str] = field(default_factory=list)
    failing: list[Failing] = field(default_factory=list)
    old: dict[tuple[str, ...], str] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    changed: Sequence[str] = ()
    stopped: bool = False
    names: Names = field(default_factory=Names)

    def replay(self, cause: Cause) -> str:
        """The command that replays a cause's case, for a reader who has its file and a checkout of his own."""
        name = Path(cause.finding.seed).name if cause.finding else f"{cause.name}.json"
        return spelled(f"python -m repro run {name} --target {shlex.quote(self.names.target or str(self.target))}")

    @property
    def unjudged(self) -> list[Pair]:
        """Pairs of the plan without a judged case, of which this release could have had some."""
        possible = dict.fromkeys(item.pair for item in self.plan.items if item.name not in self.refused)
        return [pair for pair in possible if not self.judged[pair]]


@dataclass(slots=True, kw_only=True)
class Check:
    """A running check. Mutable.

    opened: runs cases on the checked target while it is entered. comparing: says what of failing cases the change
    brings. judge, overall: the oracles. wrote: which line writes the first wrong value of a finding, here and on the
    base; empty where that is not known.
    """

    checked: Checked
    opened: Callable[[], AbstractContextManager[Ways]]
    comparing: Callable[[], AbstractContextManager[Compare]]
    judge: Callable[[Case, Trace], Sequence[Verdict]]
    overall: Callable[[Sequence[Verdict]], Status]
    wrote: Callable[[Sequence[Finding]], Sequence[Written]]
    out: Path
    tell: Callable[[str], None] = print

    def run(self) -> Checked:
        try:
            with self.opened() as ways:
                self._run_plan(ways)
                brought = self._compare() if self.checked.failing else []
                self._name_causes(ways, causes(brought))
        except KeyboardInterrupt:
            self.checked.stopped = True
        return self.checked

    def _run_plan(self, ways: Ways) -> None:
        items = self.checked.plan.items
        self.tell(f"{len(items)} setups are run on {self.checked.target}, the first of which imports sglang")
        for number, item in enumerate(items):
            ways.foresee([later.cases for later in items[number + 1 :]])
            if item.pair not in self.checked.errors:
                self._item(ways, item)
            self.checked.done = number + 1
            if self.checked.done % PROGRESS == 0 or self.checked.done == len(items):
                self.tell(f"{self.checked.done} of {len(items)} setups, {len(self.checked.failing)} cases fail")

    def _item(self, ways: Ways, item: Item) -> None:
        checked, statuses = self.checked, []
        for number, case in enumerate(item.cases, start=1):
            ways.send(item.cases[number:])
            trace = steady(case, ways.run, ways.run_fresh)
            checked.release = checked.release or trace.facts.get("sglang", "")
            if trace.ended.how is Termination.UNSUPPORTED:
                checked.refused.setdefault(item.name, trouble(trace.ended))
                return
            if trace.ended.how is Termination.ERROR:
                checked.errors[item.pair] = trouble(trace.ended)
                return
            verdicts = self.judge(case, trace)
            statuses.append(self.overall(verdicts))
            checked.judged[item.pair] += statuses[-1] is not Status.UNKNOWN
            failures = tuple(verdict for verdict in verdicts if verdict.status is Status.FAIL)
            if failures:
                checked.failing.append(Failing(item=item.name, case=case, failures=failures))
                ways.renew(failures)
            if item.seed and self._is_gone(item.seed, failures):
                checked.gone.append(item.name)
        if set(statuses) == {Status.UNKNOWN}:
            checked.doubtful.append(item.name)

    def _is_gone(self, seed: Seed, failures: Sequence[Verdict]) -> bool:
        """True if a seed says that an oracle fails on this release, and it does not."""
        try:
            oracle = expected(seed.about, self.checked.release, self.checked.target.engine)
        except ValueError:  # a development tree has no release number
            return False
        return bool(oracle) and oracle not in {verdict.oracle for verdict in failures}

    def _compare(self) -> list[Failing]:
        """The failures that the change brings. A case that shows nothing but what is settled is not asked about."""
        brought: list[Failing] = []
        settled: dict[tuple[str, ...], bool] = {}  # whether such failures are the change's, whatever the case
        every = self.checked.failing
        self.tell(f"{len(every)} failing cases are compared with {self.checked.against}")
        with self.comparing() as compare:
            for number, failing in enumerate(every):
                if number and number % PROGRESS == 0:
                    self.tell(f"{number} of {len(self.checked.failing)} cases compared")
                if shown(failing) <= settled.keys():
                    of_change = tuple(verdict for verdict in failing.failures if settled[identity(verdict)])
                    compared = Compared(brought=of_change)
                else:
                    coming = [later for later in every[number + 1 :] if not shown(later) <= settled.keys()]
                    compared = compare(failing, coming)
                    self._settle(failing, compared, settled)
                if compared.brought:
                    brought.append(replace(failing, failures=compared.brought))
        return brought

    def _settle(self, failing: Failing, compared: Compared, settled: dict[tuple[str, ...], bool]) -> None:
        if compared.doubt:
            self.checked.unsure.append(f"{failing.item}: {_names(failing.failures)}: {compared.doubt}")
            return
        settled |= {identity(verdict): True for verdict in compared.brought}
        for verdict in failing.failures:
            if verdict not in compared.brought:
                self.checked.old.setdefault(identity(verdict), compared.why)
                if compared.general:
                    settled.setdefault(identity(verdict), False)

    def _name_causes(self, ways: Ways, every: Sequence[Cause]) -> None:
        confirmed: list[Cause] = []
        for cause in every:
            self.tell(f"new: {_names([cause.first])}: is tried in a fresh process")
            finding = self._confirmed(ways, cause)
            if finding:
                same = sum(other.name == cause.name for other in confirmed)
                path = self.out / f"{cause.name}{f'-{same + 1}' if same else ''}.json"
                codec.write(path, Seed(about=about(finding), case=finding.case))
                confirmed.append(replace(cause, finding=replace(finding, seed=str(path))))
            else:
                self.checked.unsure.append(f"{_names([cause.first])}: failed once, not in a fresh process")
        self.checked.causes = confirmed
        if confirmed:
            self.tell("looking for the lines that write the wrong values")
            wrote = self.wrote([cause.finding for cause in confirmed if cause.finding])
            self.checked.causes = [
                replace(cause, wrote=line.text, location=line.location)
                for cause, line in zip(confirmed, wrote, strict=True)
            ]

    def _confirmed(self, ways: Ways, cause: Cause) -> Finding | None:
        """The first case that fails so in a fresh process, without the steps behind the failure if it can do without
        them; None if none does."""
        for failing in cause.cases[:TRIED]:
            first, case = failing.first, failing.case
            short = replace(case, steps=case.steps[: first.cell.step + 1]) if first.cell else case
            candidates = [case for case in dict.fromkeys((short, case)) if case.steps and not problems(case)]
            hooks = TriageHooks(run=ways.run, run_fresh=ways.run_fresh, judge=self.judge, say=lambda doing: None)
            finding = Triage(hooks, self.checked.target, first, ONE_FRESH_RUN).confirm_and_minimize(candidates)
            if finding.failed:
                return finding
        return None


def steady(case: Case, run: Callable[[Case], Trace], run_fresh: Callable[[Case], Trace]) -> Trace:
    """A run of the case; one more, in a process of its own, where that was none or came to no end."""
    trace = run(case)
    return run_fresh(case) if trace.ended.how in _AGAIN else trace


def identity(verdict: Verdict) -> tuple[str, ...]:
    """The identity of a failure: runner, backend, oracle, where, and the buffer that is wrong first."""
    buffer = verdict.cell.buffer if verdict.cell else ""
    return verdict.runner, verdict.backend, verdict.oracle, verdict.where, buffer


def shown(failing: Failing) -> set[tuple[str, ...]]:
    """The identities of a case's failures."""
    return {identity(verdict) for verdict in failing.failures}


def _names(failures: Sequence[Verdict]) -> str:
    return ", ".join(f"{v.runner} {v.backend} {v.oracle} {v.where}".strip() for v in failures)
