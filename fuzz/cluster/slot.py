"""A slot of a node: one process of ours that does chunk after chunk, with one worker for its target.

It talks to the node's agent (fuzz/cluster/agent.py) in lines of JSON: hears its job, then chunks; says ready, what it
is doing, and a result for each. It ends when the agent does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.cluster.chunk import Chunk
from fuzz.draw.transitions import exercised
from fuzz.stats import CampaignStats
from fuzz.triage import Hooks
from repro.cases.case import Case
from repro.commands.cli import BadInput
from repro.ledger.run import judged_row
from repro.ledger.schema import stored
from repro.ledger.write import now
from repro.traces.campaign import Campaign, Progress
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace

# Seconds between two lines about what is being done.
TELL_EVERY = 1.0
PACKAGES = ("fuzz", "oracles", "repro", "runners")

Open = Callable[[Mapping[str, Any]], contextlib.AbstractContextManager[Hooks]]


class Slot:
    """Mutable: an interrupt ends the chunk under way, and all that come after it. open_hooks: the hooks of a
    campaign for a job, for as long as the slot lives."""

    def __init__(self, hear: IO[str], say: IO[str], open_hooks: Open) -> None:
        self._hear, self._say, self._open_hooks = hear, say, open_hooks
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._running = self._stopped = False

    def serve(self) -> None:
        """Work until the agent is gone or says stop."""
        # Ray's workers, and so whatever they start, hold SIGINT back.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)
        threading.Thread(target=self._listen, daemon=True).start()
        job = self._heard.get()
        if job is None:
            return
        with contextlib.suppress(BrokenPipeError), contextlib.ExitStack() as stack:
            try:
                hooks = stack.enter_context(self._open_hooks(job))
            except BadInput as error:
                self.tell(say="ready", lacks=str(error))
                return
            self.tell(say="ready", code=code_digest())
            while (message := self._heard.get()) is not None:
                chunk = Chunk.from_json(message["chunk"])
                rows: list[Sequence[Any]] = []
                done = self._done(chunk, message["seconds"], job["run"], hooks, rows)
                self.tell(say="result", id=chunk.id, campaign=done.to_json(), rows=rows)

    def _listen(self) -> None:
        """Pass on what is heard, and interrupt what is being done once nobody is there."""
        with contextlib.suppress(ValueError):
            for text in self._hear:
                self._heard.put(json.loads(text))
        self._heard.put(None)
        os.kill(os.getpid(), signal.SIGINT)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        running, self._running, self._stopped = self._running, False, True
        if running:
            raise KeyboardInterrupt

    def _done(self, chunk: Chunk, seconds: float | None, run: str, hooks: Hooks, rows: list[Sequence[Any]]) -> Campaign:
        """What a chunk comes to. seconds: after which no further case is begun. rows: takes those of the ledger, if
        there is one."""
        plan = dataclasses.replace(chunk.plan, seconds=None if chunk.settle else seconds, stop_at_first=False)
        stats, told = CampaignStats(plan, time.monotonic), time.monotonic()

        def tell(progress: Progress) -> None:
            nonlocal told
            if time.monotonic() - told >= TELL_EVERY:
                told = time.monotonic()
                self.tell(say="doing", cases=progress.cases, replays=progress.replays, doing=progress.doing)

        def note(case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
            if run and not chunk.settle:
                moves = exercised(case, trace.replayed)
                row = judged_row(run, plan.target, case, trace, verdicts, status, moves)
                rows.append(stored(dataclasses.replace(row, at=now())))

        # A failure is only told of, unless this chunk is there for it.
        own = dataclasses.replace(hooks, claim=lambda fingerprint: fingerprint == chunk.settle, tell=tell, note=note)
        try:
            self._running = not self._stopped
            if self._stopped:
                return stats.campaign("interrupted")
            if chunk.settle:
                return campaign(plan, CaseStream(iter(chunk.up_to_the_case())), own, stats)
            cases = chunk.rounds()
            return campaign(plan, CaseStream(cases, cases.coming), own, stats)
        except KeyboardInterrupt:  # before it began, or just as it had ended
            return stats.campaign("interrupted")
        finally:
            self._running = False

    def tell(self, **message: Any) -> None:
        """BrokenPipeError if the agent is gone."""
        self._say.write(json.dumps(message) + "\n")
        self._say.flush()


def code_digest() -> str:
    """What tells this checkout from others: two nodes with different code would not mean the same by a chunk."""
    project = Path(__file__).resolve().parent.parent.parent
    total = hashlib.sha256()
    for path in _sources(project):
        total.update(f"{path.relative_to(project)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _sources(project: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((project / package).rglob("*.py"))
