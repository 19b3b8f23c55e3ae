"""A slot's part in a campaign: what a chunk of it comes to, with one worker for its target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.cluster.chunk import Chunk
from fuzz.cluster.slot import Slot
from fuzz.draw.rounds import ROUNDS_ANNOUNCED, Rounds
from fuzz.draw.transitions import exercised
from fuzz.stats import CampaignStats
from fuzz.triage import Hooks
from repro.cases.case import Case
from repro.ledger.run import judged_row
from repro.ledger.schema import stored
from repro.ledger.write import now
from repro.traces.campaign import Campaign, Progress
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace

# Seconds between two lines about what is being done.
TELL_EVERY = 1.0


@dataclasses.dataclass(slots=True, kw_only=True)
class CampaignWork:
    """Mutable. run: of the ledger; empty without one. begun: the rounds of what comes next, by chunk: some of their
    cases were drawn, and run ahead."""

    slot: Slot
    hooks: Hooks
    run: str
    begun: dict[str, Rounds] = dataclasses.field(default_factory=dict)

    def do(self, form: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
        """`campaign`; `rows`, those of the ledger; `seconds` from the end of the first case on: what a worker needs to
        start says nothing of other chunks."""
        chunk = Chunk.from_json(form)
        plan = dataclasses.replace(chunk.plan, seconds=None if chunk.settle else seconds, stop_at_first=False)
        stats = CampaignStats(plan, time.monotonic)
        reported, first = time.monotonic(), 0.0
        rows: list[Sequence[Any]] = []

        def tell(progress: Progress) -> None:
            nonlocal reported
            if time.monotonic() - reported >= TELL_EVERY:
                reported = time.monotonic()
                self.slot.tell(say="doing", cases=progress.cases, replays=progress.replays, doing=progress.doing)

        def note(case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
            nonlocal first
            first = first or stats.seconds
            if self.run and not chunk.settle:
                moves = exercised(case, trace.replayed)
                row = judged_row(self.run, plan.target, case, trace, verdicts, status, moves)
                rows.append(stored(dataclasses.replace(row, at=now())))

        # A failure is only told of, unless this chunk is there for it.
        options = dataclasses.replace(
            self.hooks, claim=lambda fingerprint: fingerprint == chunk.settle, tell=tell, note=note
        )
        done = self._done(chunk, options, stats)
        return {"id": chunk.id, "campaign": done.to_json(), "rows": rows, "seconds": done.seconds - first}

    def _done(self, chunk: Chunk, hooks: Hooks, stats: CampaignStats) -> Campaign:
        try:
            with self.slot.under_way():
                if chunk.settle:
                    return campaign(stats.plan, CaseStream(iter(chunk.up_to_the_case())), hooks, stats)
                cases = self.begun.pop(chunk.id, None) or chunk.rounds()
                self.begun.clear()
                return campaign(stats.plan, CaseStream(cases, partial(self._coming, cases), cases.leave), hooks, stats)
        except KeyboardInterrupt:  # before it began, or just as it had ended
            return stats.campaign("interrupted")

    def _coming(self, cases: Rounds) -> tuple[tuple[Case, ...], ...]:
        """The first cases of the next rounds: behind those of this chunk, of the one that comes next."""
        coming, following = cases.coming(), self.slot.next
        if following and not following["settle"] and len(coming) < ROUNDS_ANNOUNCED:
            chunk = Chunk.from_json(following)
            coming += self.begun.setdefault(chunk.id, chunk.rounds()).coming()
        return coming[:ROUNDS_ANNOUNCED]
