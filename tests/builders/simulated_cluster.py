"""A cluster without processes: nodes that come, go, answer late, twice or never, as a source of choices says."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic

from fuzz.cluster.chunk import Chunk, Cutter
from fuzz.cluster.drive import Drive, Office
from fuzz.cluster.nodes import Answer, Event, Joined, Left, W
from fuzz.draw.rounds import room, round_cases
from fuzz.stats import CampaignStats, Plan
from repro.cases.case import Case, Target
from repro.cases.codec import digest
from repro.ledger.rows import CaseRow
from repro.ledger.schema import stored
from repro.traces.campaign import Campaign, CampaignFinding
from repro.traces.finding import Finding, fingerprint

PLAN = Plan(target=Target("simulated", "toy"), runner="toy", backend="triton", seed=5)
A_ROUND = 3
FAILURES = 4
ORACLE = "staged"
FAILING_ROUNDS = 3  # every third round shows a failure

# A number from 0 to this one less 1.
Choose = Callable[[int], int]


@cache
def first_case(number: int) -> Case:
    return next(round_cases(PLAN.seed, number, PLAN.runner, PLAN.backend, A_ROUND))


def failure_of(number: int) -> str:
    """The failure of this round's first case; empty: none."""
    where = f"failure{number // FAILING_ROUNDS % FAILURES}"
    return "" if number % FAILING_ROUNDS else fingerprint(PLAN.runner, PLAN.backend, ORACLE, where)


def where_of(name: str) -> str:
    wheres = (f"failure{number}" for number in range(FAILURES))
    return next(where for where in wheres if fingerprint(PLAN.runner, PLAN.backend, ORACLE, where) == name)


def result(chunk: Chunk, run: str = "") -> dict[str, Any]:
    """The result of a slot for this chunk."""
    numbers = range(chunk.first, chunk.last)
    counts = {number: room(chunk.limit, A_ROUND, number) for number in numbers}
    findings: dict[str, CampaignFinding] = {}
    for number in numbers:
        name = failure_of(number)
        if name and (not chunk.settle or (name == chunk.settle and digest(first_case(number)) == chunk.case)):
            known = findings.get(name) or _found(name, first_case(number), settled=bool(chunk.settle))
            findings[name] = dataclasses.replace(known, cases=known.cases + 1)
    stats = CampaignStats(chunk.plan, lambda: 0.0)
    campaign = dataclasses.replace(
        stats.campaign("cases"),
        cases=sum(counts.values()),
        seconds=float(sum(counts.values())),
        endings={"done": sum(counts.values())},
        findings=tuple(findings.values()),
    )
    names = [f"{number}.{place}" for number, count in counts.items() for place in range(count)]
    rows = [] if chunk.settle else [_row(name) for name in names]
    return {"campaign": campaign.to_json(), "rows": rows, "seconds": campaign.seconds}


def _found(name: str, case: Case, *, settled: bool) -> CampaignFinding:
    return CampaignFinding(
        target=str(PLAN.target),
        fingerprint=name,
        oracle=ORACLE,
        where=where_of(name),
        detail="",
        seed="",
        failed=5 * settled,
        tried=5 * settled,
        cases=0,
        at_case=1,
        at_seconds=0.5,
        done_seconds=0.5,
        shrink_runs=7 * settled,
        case=case,
    )


def _row(name: str) -> list[Any]:
    row = CaseRow(
        run="r",
        target=str(PLAN.target),
        runner="toy",
        backend="triton",
        topk=1,
        num_steps=1,
        digest=name,
        status="PASS",
        replays=1,
        seconds=0.1,
        at="2026-01-01T00:00:00.000000+00:00",
    )
    return list(stored(row))


def interrupted(chunk: Chunk) -> dict[str, Any]:
    stats = CampaignStats(chunk.plan, lambda: 0.0)
    return {"campaign": stats.campaign("interrupted").to_json(), "rows": []}


class LossyNodes(Generic[W]):
    """A Nodes. At each wait one thing happens, chosen by `choose`; no more than `losses` of them are losses. Mutable.
    clock: the time, which passes here alone. result: what a slot would say of a chunk; interrupted: after a stop."""

    def __init__(
        self,
        choose: Choose,
        losses: int,
        slots: int,
        most: int,
        result: Callable[[W], dict[str, Any]],
        interrupted: Callable[[W], dict[str, Any]],
    ) -> None:
        self.choose, self.losses, self.slots, self.most = choose, losses, slots, most
        self.result, self.interrupted = result, interrupted
        self.now = 0.0
        self.at: dict[str, list[W]] = {}
        self.late: list[Answer[W]] = []
        self.done: Counter[str] = Counter()  # how often a chunk was done, by id
        self.names = 0
        self.stopped = False

    def clock(self) -> float:
        return self.now

    def send(self, node: str, chunk: W, seconds: float | None) -> None:
        assert len(self.at[node]) < 2 * self.slots, "more in flight than two a slot"
        self.at[node].append(chunk)

    def interrupt(self) -> None:
        self.stopped = True

    def wait(self, seconds: float) -> Sequence[Event[W]]:
        self.now += seconds
        if self.stopped:
            gone = [Answer(node=node, chunk=c, message=self.interrupted(c)) for node, cs in self.at.items() for c in cs]
            self.at = {node: [] for node in self.at}
            return gone
        if not self.at or (len(self.at) < self.most and not self.choose(6)):
            return [self._join()]
        node = list(self.at)[self.choose(len(self.at))]
        if self.losses and not self.choose(4):
            self.losses -= 1
            return [self._lose(node)]
        if self.late and not self.choose(3):
            return [self.late.pop()]
        if not self.at[node]:
            return []
        chunk = self.at[node].pop(self.choose(min(self.slots, len(self.at[node]))))
        self.done[chunk.id] += 1
        return [Answer(node=node, chunk=chunk, message=self.result(chunk))]

    def _join(self) -> Event[W]:
        self.names += 1
        node = f"node{self.names}"
        self.at[node] = []
        return Joined(node=node, slots=self.slots)

    def _lose(self, node: str) -> Event[W]:
        """The node, or a process of it; what it had done may still come, after all."""
        chunks = self.at[node]
        if chunks and self.choose(2):
            return Answer(node=node, chunk=chunks.pop(0), message={"lost": "SIGKILL"})
        del self.at[node]
        if chunks and not self.choose(3):
            self.late.append(Answer(node=node, chunk=chunks[0], message=self.result(chunks[0])))
        return Left(node=node, why="node lost")


class SimulatedNodes(LossyNodes[Chunk]):
    """The nodes of a campaign."""

    def __init__(self, choose: Choose, losses: int, slots: int = 2, most: int = 3) -> None:
        super().__init__(choose, losses, slots, most, result, interrupted)


def expected(limit: int) -> tuple[list[str], Counter[str]]:
    """The names of all cases, and how many cases show each failure."""
    rounds = range(-(-limit // A_ROUND))
    cases = [f"{number}.{place}" for number in rounds for place in range(room(limit, A_ROUND, number))]
    return cases, Counter(name for number in rounds if (name := failure_of(number)))


def counted(campaign: Campaign) -> dict[str, int]:
    return {finding.fingerprint: finding.cases for finding in campaign.findings}


class Told:
    """The messages that an office got. Mutable."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, int]] = []
        self.rows: list[str] = []
        self.said: list[str] = []

    def keep(self, finding: Finding) -> str:
        self.kept.append((finding.verdict.fingerprint, finding.failed))
        return f"{finding.verdict.fingerprint}.json"

    def note(self, row: CaseRow) -> None:
        self.rows.append(row.digest)


def run(nodes: SimulatedNodes, limit: int | None, plan: Plan = PLAN, seconds: float = 20) -> tuple[Campaign, Told]:
    listener = Told()
    office = Office(
        keep=listener.keep, note=listener.note, tell=lambda progress: None, say=listener.said.append, clock=nodes.clock
    )
    return Drive(plan, Cutter(plan, A_ROUND, limit, seconds), nodes, office).work(), listener
