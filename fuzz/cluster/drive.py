"""The driver: sends the chunks of a campaign to the nodes of a cluster, takes what comes back, and makes one campaign
of it. It runs nothing itself, and nothing that a node does or suffers raises here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from fuzz.campaign import OVERTIME_S
from fuzz.cluster.board import Board
from fuzz.cluster.chunk import Chunk, Cutter
from fuzz.cluster.dispatcher import Dispatcher
from fuzz.cluster.nodes import Answer, Nodes
from fuzz.cluster.schedule import LOSSES_SUSPECT
from fuzz.stats import CampaignStats, Plan
from repro.commands.interrupts import held, let_in
from repro.ledger.rows import CaseRow
from repro.traces.campaign import Campaign, Progress
from repro.traces.finding import Finding
from repro.traces.typed import BadRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """The functions that the driver is given. keep: store a finding. note: a case was run, for the ledger. tell: show
    progress. say: one line for a person. clock: seconds, rising."""

    keep: Callable[[Finding], str]
    note: Callable[[CaseRow], None]
    tell: Callable[[Progress], None]
    say: Callable[[str], None]
    clock: Callable[[], float]


class Drive:
    """One campaign over a cluster. Mutable."""

    def __init__(self, plan: Plan, cutter: Cutter, nodes: Nodes[Chunk], office: Office) -> None:
        self._plan, self._cutter, self._office = plan, cutter, office
        self._dispatcher = Dispatcher(nodes, self._fresh, office.say, office.clock)
        self._schedule = self._dispatcher.schedule
        self._board = Board(plan, CampaignStats(plan, office.clock).campaign("running"), office.keep)
        self._started: float | None = None  # when anything had come of what was sent: a plan's seconds count from then
        self._stopping = False
        self._untried: list[str] = []  # what was lost so often that it had to wait, and then there was no time

    def work(self) -> Campaign:
        """Run the campaign to its end. KeyboardInterrupt stops all nodes, and what they have come to counts."""
        try:
            with let_in():
                stopped, error = self._work()
        except KeyboardInterrupt:
            stopped, error = "interrupted", ""
        except OSError as trouble:
            stopped, error = "error", f"{type(trouble).__name__}: {trouble}"
        if self._schedule.in_flight:
            self._stopping = True
            # A second interrupt waits for nothing.
            with contextlib.suppress(KeyboardInterrupt), let_in():
                self._hear(self._dispatcher.stop())
        return self._campaign(stopped, error)

    def _work(self) -> tuple[str, str]:
        """Why it stopped, and what went wrong."""
        while True:
            for lost in self._schedule.given_up:
                self._cutter.ran(lost.chunk, None)
            while not self._done and self._dispatcher.send(self._left):
                pass
            if self._board.cannot_run:
                return "cannot run", ""
            if self._plan.stop_at_first and self._board.confirmed:
                return "first finding", ""
            if self._schedule.idle and (self._late or self._cutter.ended):
                return ("time" if self._late else "cases"), ""
            if self._overdue:
                return "time", ""
            if trouble := self._dispatcher.trouble():
                return "error", trouble
            self._hear(self._dispatcher.hear())

    @property
    def _seconds(self) -> float:
        return self._office.clock() - self._dispatcher.began

    @property
    def _done(self) -> bool:
        return self._board.cannot_run or (self._plan.stop_at_first and self._board.confirmed)

    @property
    def _left(self) -> float | None:
        """Seconds that are left. As on one host, what workers need to start is none of them."""
        if self._plan.seconds is None:
            return None
        spent = 0.0 if self._started is None else self._seconds - self._started
        return max(0.0, self._plan.seconds - spent)

    @property
    def _late(self) -> bool:
        return self._left == 0.0

    @property
    def _overdue(self) -> bool:
        """True if what settles findings has gone on for too long. It is then left as an interrupt leaves it."""
        limit = math.inf if self._plan.seconds is None else self._plan.seconds + OVERTIME_S
        return self._started is not None and self._seconds - self._started > limit

    def _fresh(self) -> Chunk | None:
        return None if self._late else self._cutter.next()

    def _hear(self, answers: Iterable[Answer[Chunk]]) -> None:
        for answer in answers:
            self._begin()
            with held():  # no interrupt leaves half of a chunk counted
                self._answered(answer)
        progress = self._progress()
        if progress.cases:
            self._begin()
        self._office.tell(progress)

    def _begin(self) -> None:
        if self._started is None:
            self._started = self._seconds

    def _answered(self, answer: Answer[Chunk]) -> None:
        message, chunk = answer.message, answer.chunk
        try:
            part = Campaign.from_json(message["campaign"]) if "campaign" in message else None
            rows = [_row(values) for values in message.get("rows", ())]
            spent = float(message.get("seconds", 0.0))
        except (BadRecord, TypeError, ValueError) as error:
            self._schedule.lose(answer.node, chunk, f"its result makes no sense: {error}")
            return
        if part is None or part.stopped == "error" or (part.stopped == "interrupted" and not self._stopping):
            why = (part and (part.error or part.stopped)) or message.get("lost", "not begun")
            self._schedule.lose(answer.node, chunk, str(why))
            return
        if not self._schedule.finish(answer.node, chunk):
            return  # it was lost, as it seemed, and another node has done it since
        losses = self._schedule.losses(chunk)
        if len(losses) >= LOSSES_SUSPECT and part.stopped == "time" and not part.cases:
            self._untried.append(
                f"{chunk.name} lost and not done before time was up: {'; '.join(dict.fromkeys(losses))}"
            )
        for row in rows:
            self._office.note(row)
        if part.stopped == "cases" and not chunk.settle:
            self._cutter.ran(chunk, part.cases, spent)
        for settle in self._board.take(chunk, part, self._seconds):
            self._schedule.add(settle)

    def _progress(self) -> Progress:
        total, slots = self._board.total, [slot for slots in self._dispatcher.doing.values() for slot in slots if slot]
        losses = sum(self._schedule.lost.values())
        lost = f", {losses} chunk{'s' if losses > 1 else ''} lost and done again" if losses else ""
        at_work = [str(slot["doing"]) for slot in slots if slot["doing"] != "running"]
        return Progress(
            target=total.target,
            cases=total.cases + sum(int(slot["cases"]) for slot in slots),
            replays=total.replays + sum(int(slot["replays"]) for slot in slots),
            seconds=self._seconds,
            transitions=len(total.transitions),
            transitions_possible=total.transitions_possible,
            findings=total.findings,
            doing=f"{self._where}{lost}; {(at_work or ['running'])[0]}",
        )

    @property
    def _where(self) -> str:
        nodes, slots = self._schedule.nodes, self._schedule.slots
        return f"{nodes} nodes, {slots} slots" if nodes > 1 else f"{slots} workers"

    def _campaign(self, stopped: str, error: str) -> Campaign:
        """All of it. A chunk that was lost and never done is a harness error, never a finding."""
        total, schedule = self._board.total, self._schedule
        lost = "; ".join(f"{why}: {count}" for why, count in schedule.lost.most_common())
        return dataclasses.replace(
            total,
            stopped=stopped,
            error=error,
            ended=CampaignStats(self._plan, self._office.clock).campaign("").ended,
            seconds=self._seconds,
            workers=max(1, self._dispatcher.most_slots),
            errors={**total.errors, **dict.fromkeys((*self._dispatcher.given_up(), *self._untried), 1)},
            facts={**total.facts, **({"chunks lost and done again": lost} if lost else {})},
        )


def _row(values: Sequence[Any]) -> CaseRow:
    return CaseRow(**{field.name: value for field, value in zip(fields(CaseRow), values, strict=True)})
