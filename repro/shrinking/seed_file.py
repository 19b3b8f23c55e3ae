"""Shrink the case of a seed file, with the best so far in another file at any moment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from repro.cases import codec
from repro.cases.case import Case, Target
from repro.cases.codec import BadSeed, Seed
from repro.cases.sort_key import sort_key
from repro.cases.words import sentence
from repro.shrinking import store
from repro.shrinking.triage import Budget, Triage, TriageHooks
from repro.traces.finding import Finding, Verdict
from repro.traces.trace import Trace


class InTheWay(Exception):
    """The output file holds something that must not be replaced. The text, one line, says what."""


class SeedFile:
    """A seed on its way to a smaller one. Mutable. start: what is shrunk, towards this verdict. out: the file of the
    best case so far."""

    def __init__(
        self, start: Seed, target: Target, verdict: Verdict, out: Path, hooks: TriageHooks, budget: Budget
    ) -> None:
        self._start, self._out, self._hooks = start, out, hooks
        self._best = start.case
        self._triage = Triage(dataclasses.replace(hooks, keep=self._write), target, verdict, budget)

    @property
    def runs(self) -> int:
        """Runs spent so far, without those that confirm the result."""
        return self._triage.runs

    def shrink(self) -> Finding:
        """The smallest case found and how often it failed in fresh processes. InTheWay; OSError from the disk."""
        return self._triage.minimize(self._begin())

    def _begin(self) -> Case:
        """The case to begin with: an earlier result in the output file if it goes on from there, else the start."""
        if not self._out.exists():
            self._triage.keep(self._start.case)
            return self._start.case
        try:
            earlier = codec.read(self._out).case
        except BadSeed as error:
            raise InTheWay(f"will not replace a file that is not a seed: {error}") from error
        if earlier == self._start.case:
            return earlier
        if sort_key(earlier) < sort_key(self._start.case) and self._triage.fails(earlier, self._hooks.run_fresh):
            self._hooks.say(f"going on from {self._out}: {sentence(earlier)}")
            self._best = earlier
            return earlier
        raise InTheWay(
            f"{self._out} holds another case, which is not simpler or does not fail alike; name another file"
        )

    def _write(self, finding: Finding, trace: Trace | None) -> None:
        """Write this form to the output file, with what is known about it."""
        case, start = finding.case, self._start
        shrunk_from = codec.digest(start.case) if case != start.case else ""
        stated = store.about(finding, shrunk_from=shrunk_from)
        # A person's words stay. Statements about the larger case, as its first wrong cell, need not hold here.
        by_hand = {name: text for name, text in start.about.items() if name not in store.STATED or name == "found"}
        codec.write(self._out, Seed(about={**stated, **by_hand}, case=case))
        if sort_key(case) < sort_key(self._best):
            self._hooks.say(f"run {self.runs}: {_described(case)}")
        self._best = case


def _described(case: Case) -> str:
    longest = max(request.seq_len for step in case.steps for request in step.requests)
    return (
        f"{sentence(case)}; topk {case.setup.topk}, {case.setup.num_steps} draft steps, "
        f"prefixes of up to {longest} tokens"
    )
