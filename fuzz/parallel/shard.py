"""A member's side of a campaign that several processes work on: cases as they are dealt, and what the others must know.

It talks to the crew (fuzz/parallel/coordinator.py) in lines of JSON, one question at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from fuzz.parallel.scheduler import Wish
from fuzz.stats import Plan, Tally
from repro.cases.case import Case, Target
from repro.traces.campaign import Campaign, Progress

# Seconds between two accounts of the whole campaign: a few milliseconds' work, and the most that a kill can lose.
TELL_EVERY = 1.0
INTERRUPTS = frozenset({signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def held(signals: frozenset[signal.Signals]) -> Iterator[None]:
    """Within this, these signals wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return dataclasses.asdict(plan) | {"target": str(plan.target)}


def plan_from_json(form: Mapping[str, Any]) -> Plan:
    return Plan(**(dict(form) | {"target": Target.parse(form["target"])}))


class Line:
    """The line to the crew. Mutable: it has said things."""

    def __init__(self, hear: IO[str], say: IO[str]) -> None:
        self._hear, self._say = hear, say

    def tell(self, **message: Any) -> None:
        """BrokenPipeError if the other side is gone."""
        text = json.dumps(message) + "\n"
        # Half a line would spoil the next one.
        with held(INTERRUPTS):
            self._say.write(text)
            self._say.flush()

    def ask(self, **message: Any) -> dict[str, Any]:
        """The answer to this question. BrokenPipeError if the other side is gone."""
        self.tell(**message)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """What comes next. BrokenPipeError if the other side is gone."""
        text = self._hear.readline()
        if not text:
            raise BrokenPipeError("nobody is there to answer")
        return dict(json.loads(text))


class Member:
    """One member at work. Mutable."""

    def __init__(self, line: Line, tally: Tally, clock: Callable[[], float]) -> None:
        self.line, self.tally = line, tally
        self._clock = clock
        self._told = float("-inf")
        self._known: dict[str, int] = {}

    def cases(self, of_round: Callable[[int], Iterator[Case]]) -> Iterator[Case | None]:
        """The cases that this member is to run: rounds as they are granted, each as far as it is granted. None where
        what to ask for next is not known before the case under way has been counted."""
        grant = self._granted(Wish())
        while grant["round"] is not None:
            number, before = grant["round"], self.tally.cases
            for case in of_round(number):
                while self._ran(before) >= grant["cases"] and grant["round"] == number:
                    if self.tally.under_way:
                        yield None
                        continue
                    grant = self._granted(Wish(round=number, ran=self.tally.cases - before, drained=False))
                if grant["round"] != number:
                    break  # the limit is met
                yield case
            else:
                while self.tally.under_way:
                    yield None
                grant = self._granted(Wish(round=number, ran=self.tally.cases - before))

    def _ran(self, before: int) -> int:
        return self.tally.cases + self.tally.under_way - before

    def _granted(self, wish: Wish) -> dict[str, Any]:
        return self.line.ask(say="wish", **dataclasses.asdict(wish))

    def claim(self, fingerprint: str) -> bool:
        """Whether this member is the one to settle this failure: the first who met it is."""
        try:
            return bool(self.line.ask(say="claim", fingerprint=fingerprint)["claimed"])
        except BrokenPipeError:
            return True  # with nobody left to keep it, we do

    def account(self, progress: Progress) -> None:
        """Tell of all that was done, now and then, and whenever something is known better of a finding."""
        known = {found.fingerprint: found.tried + bool(found.seed) for found in progress.findings}
        if known != self._known or self._clock() - self._told >= TELL_EVERY:
            self._known, self._told = known, self._clock()
            self.line.tell(say="account", doing=progress.doing, campaign=self.tally.campaign("running").to_json())

    def work(self, campaign: Callable[[], Campaign]) -> None:
        """Run the campaign and tell what it came to. An interrupt ends it, and reaches nothing else."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before - INTERRUPTS)
            done = campaign()
            signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        except KeyboardInterrupt:  # before it began, or just as it had ended
            done = self.tally.campaign("interrupted")
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        self.line.tell(say="done", doing="done", campaign=done.to_json())
