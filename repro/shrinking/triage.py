"""Shrink the case of a seed file, with the best so far in another file at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repro.cases import codec
from repro.cases.case import Case, Setup, Target
from repro.cases.codec import BadSeed, Seed
from repro.cases.sort_key import sort_key
from repro.cases.words import sentence
from repro.shrinking import store
from repro.shrinking.confirm import Judge, Run, confirm, failure
from repro.shrinking.shrink import NotFailing, shrink
from repro.traces.finding import Finding, Verdict

# How many sessions are asked for ahead; it is the pool that knows how many it has room for.
SESSIONS_AHEAD = 8


class InTheWay(Exception):
    """The output file holds something that is not ours to replace. The text, one line, says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """run: in a session that may be kept from case to case. run_fresh: in a process of its own. judge: what all oracles
    say. tell: one line of progress. clock: seconds, rising. expect: told which setups will need a new session soon,
    each as often as it will, so that some can be opened ahead."""

    run: Run
    run_fresh: Run
    judge: Judge
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    expect: Callable[[Sequence[Setup]], None] = lambda setups: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most runs and seconds to spend on shrinking, and the runs that confirm the result."""

    runs: int
    seconds: float
    tries: int


@dataclass(slots=True, kw_only=True)
class Shrinking:
    """One seed on its way to a smaller one. Mutable: it counts runs and remembers the verdict of each failing case."""

    start: Seed
    target: Target
    verdict: Verdict
    out: Path
    means: Means
    budget: Budget
    runs: int = 0
    _verdicts: dict[Case, Verdict] = field(default_factory=dict)

    def go(self) -> Finding:
        """The smallest case found and how often it failed in fresh processes. InTheWay; OSError from the disk.

        A smaller case that fails only in a session which others have used before is not taken: then everything is
        done again with a fresh process for every run.
        """
        begin = self._begin()
        stop = self.means.clock() + self.budget.seconds
        ways = dict.fromkeys((self.means.run, self.means.run_fresh))
        for run in ways:
            smallest = self._shrunk(begin, run, stop)
            if smallest is None:
                continue
            self.means.tell(f"confirming {sentence(smallest)}")
            judge, fingerprint = self.means.judge, self.verdict.fingerprint
            self.means.expect((smallest.setup,) * self.budget.tries)
            failed, tried = confirm(self.means.run_fresh, judge, smallest, fingerprint, self.budget.tries)
            finding = self.put(smallest, failed, tried)
            if failed:
                return finding
            self.means.tell(f"failed 0 of {tried} runs in fresh processes")
            self.put(begin)
        return self.put(begin)

    def put(self, case: Case, failed: int = 0, tried: int = 0) -> Finding:
        """Write this case to the output file, with what is known about it."""
        verdict = self._verdicts.get(case, self.verdict)
        finding = Finding(
            case=case, target=self.target, verdict=verdict, failed=failed, tried=tried, seed=str(self.out)
        )
        shrunk_from = codec.digest(self.start.case) if case != self.start.case else ""
        stated = store.about(finding, shrunk_from=shrunk_from)
        # What a person wrote stays. What was stated of the larger case, as its first wrong cell, need not hold here.
        kept = {name: value for name, value in self.start.about.items() if name not in store.STATED or name == "found"}
        codec.write(self.out, Seed(about={**stated, **kept}, case=case))
        return finding

    def _begin(self) -> Case:
        """The case to begin with: an earlier result in the output file if it goes on from there, else the start."""
        if not self.out.exists():
            self.put(self.start.case)
            return self.start.case
        try:
            earlier = codec.read(self.out).case
        except BadSeed as error:
            raise InTheWay(f"will not replace what is no seed: {error}") from error
        if earlier == self.start.case:
            return earlier
        if sort_key(earlier) < sort_key(self.start.case) and self._fails(earlier, self.means.run_fresh):
            self.means.tell(f"going on from {self.out}: {sentence(earlier)}")
            return earlier
        raise InTheWay(f"{self.out} holds another case, which is not simpler or does not fail alike; name another file")

    def _shrunk(self, begin: Case, run: Run, stop: float) -> Case | None:
        """The smallest case; None if there is no budget left, or if the start does not fail when run in this way."""

        best = begin

        def still_fails(case: Case) -> bool:
            # Most moves leave the setup as it is, so that the best one's sessions will be of use.
            self.means.expect((best.setup,) * SESSIONS_AHEAD)
            return self._fails(case, run)

        def better(case: Case) -> None:
            nonlocal best
            best = case
            self.put(case)
            longest = max(request.seq_len for step in case.steps for request in step.requests)
            rest = f"topk {case.setup.topk}, {case.setup.num_steps} draft steps, prefixes of up to {longest} tokens"
            self.means.tell(f"run {self.runs}: {sentence(case)}; {rest}")

        runs_left, seconds_left = self.budget.runs - self.runs, stop - self.means.clock()
        if runs_left <= 0 or seconds_left <= 0:
            return None
        try:
            return shrink(
                begin,
                still_fails,
                runs_max=runs_left,
                seconds_max=seconds_left,
                on_better=better,
                clock=self.means.clock,
            )
        except NotFailing:
            return None

    def _fails(self, case: Case, run: Run) -> bool:
        self.runs += 1
        verdict = failure(self.means.judge(case, run(case)), self.verdict.fingerprint)
        if verdict:
            self._verdicts[case] = verdict
        return verdict is not None
