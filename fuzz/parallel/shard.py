"""A shard's side of a campaign that several processes share: it runs the rounds that are leased to it and reports.

It talks to the coordinator (fuzz/parallel/coordinator.py) in lines of JSON, one question at a time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from fuzz.case_source import NoCase
from fuzz.draw.rounds import BegunRounds
from fuzz.parallel.scheduler import Lease, LeaseRequest
from fuzz.stats import CampaignStats, Plan
from repro.cases.case import Case, Target
from repro.commands.interrupts import held, let_in
from repro.traces.campaign import Campaign, Progress

# Seconds between two reports of the whole campaign: a few milliseconds' work, and the most that a kill can lose.
REPORT_EVERY = 1.0


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return dataclasses.asdict(plan) | {"target": str(plan.target)}


def plan_from_json(form: Mapping[str, Any]) -> Plan:
    return Plan(**(dict(form) | {"target": Target.parse(form["target"])}))


class Channel:
    """JSON lines between a shard and its coordinator. BrokenPipeError if the other side is gone."""

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._source, self._sink = source, sink

    def send(self, **message: Any) -> None:
        text = json.dumps(message) + "\n"
        # Half a line would spoil the next one.
        with held():
            self._sink.write(text)
            self._sink.flush()

    def ask(self, **message: Any) -> dict[str, Any]:
        """The answer to this question."""
        self.send(**message)
        return self.receive()

    def receive(self) -> dict[str, Any]:
        text = self._source.readline()
        if not text:
            raise BrokenPipeError("the coordinator is gone")
        return dict(json.loads(text))


class LeasedRounds:
    """A case source: the rounds that the coordinator leases, each as far as its lease goes. Mutable. cases_of: of a
    round, by its place among those of the campaign."""

    def __init__(self, channel: Channel, cases_of: Callable[[int], Iterator[Case]]) -> None:
        self._channel, self._rounds = channel, BegunRounds(cases_of)
        self._lease: Lease | None = None  # until the first one is asked for
        self._cases: Iterator[Case] = iter(())
        self._drawn: Case | None = None  # the round's next case
        self._ran_before = 0  # cases of earlier rounds

    def next_case(self, ran: int, in_flight: int = 0) -> Case | NoCase:
        lease = self._lease or self._ask(LeaseRequest(), ran)
        while lease.round is not None:
            if self._drawn is None:
                self._drawn = next(self._cases, None)
            case, ran_here = self._drawn, ran - self._ran_before
            if case is not None and ran_here + in_flight < lease.cases:
                self._drawn = None
                return case
            if in_flight:
                return NoCase.NOT_YET  # the request says how many cases of the round could be run
            lease = self._ask(LeaseRequest(round=lease.round, ran=ran_here, drained=case is None), ran)
        return NoCase.DONE

    def _ask(self, request: LeaseRequest, ran: int) -> Lease:
        answer = self._channel.ask(say="lease", **dataclasses.asdict(request))
        lease = Lease(**(answer | {"ahead": tuple(answer["ahead"])}))
        if lease.round is not None and lease.round != request.round:
            self._cases, self._drawn, self._ran_before = self._rounds.take(lease.round), None, ran
        self._lease = lease
        return lease

    def leave(self) -> None:
        self._cases, self._drawn = iter(()), None

    def coming(self) -> tuple[tuple[Case, ...], ...]:
        return self._rounds.announce(self._lease.ahead if self._lease else ())


class Shard:
    """What a shard tells the coordinator. Mutable."""

    def __init__(self, channel: Channel, stats: CampaignStats, clock: Callable[[], float]) -> None:
        self.channel, self.stats = channel, stats
        self._clock = clock
        self._reported = float("-inf")
        self._known: dict[str, int] = {}

    def claim(self, fingerprint: str) -> bool:
        """True if this shard reported the failure first and therefore triages it."""
        try:
            return bool(self.channel.ask(say="claim", fingerprint=fingerprint)["claimed"])
        except BrokenPipeError:
            return True  # no other shard can store it any more

    def report(self, progress: Progress) -> None:
        """Report the campaign so far, now and then, and whenever more is known of a finding."""
        known = {found.fingerprint: found.tried + bool(found.seed) for found in progress.findings}
        if known != self._known or self._clock() - self._reported >= REPORT_EVERY:
            self._known, self._reported = known, self._clock()
            self.channel.send(say="report", doing=progress.doing, campaign=self.stats.campaign("running").to_json())

    def run(self, campaign: Callable[[], Campaign]) -> None:
        """Run the campaign and report its result. An interrupt ends it, and reaches nothing else."""
        with held():
            try:
                with let_in():
                    done = campaign()
            except KeyboardInterrupt:  # before it began, or just as it had ended
                done = self.stats.campaign("interrupted")
            self.channel.send(say="done", doing="done", campaign=done.to_json())
