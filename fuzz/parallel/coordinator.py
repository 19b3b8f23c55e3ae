"""Several processes at work on one campaign: starts them, leases them rounds, lets one of them triage each failure, and
merges their results into one campaign.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzz.parallel.merge import merged
from fuzz.parallel.scheduler import LeaseRequest, Leases, RoundScheduler
from fuzz.parallel.shard import Channel
from fuzz.stats import CampaignStats, Plan
from repro.commands.interrupts import held, let_in
from repro.traces.campaign import Campaign, Progress
from repro.traces.typed import BadRecord

# Seconds between two checks whether all shards have ended; messages are received at once.
_PAUSE = 0.2
# Seconds that a shard has to end its own workers.
_PATIENCE = 5.0
# Seconds that shards have to end their campaigns once they are stopped.
_STOP_S = 7.0


class _ShardHandle:
    """One shard, seen from the coordinator. Mutable."""

    def __init__(self, number: int, command: Sequence[str], task: Mapping[str, Any]) -> None:
        self.number = number
        # A group of its own: Ctrl-C reaches it from the coordinator alone, and once.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        assert self.process.stdin and self.process.stdout
        self.channel = Channel(self.process.stdout, self.process.stdin)
        self.campaign: Campaign | None = None  # as last reported
        self.done = self.ready = self.started = self.closed = False
        self.doing = "starting"
        self.trouble = ""
        self.send(**task)

    def send(self, **message: Any) -> None:
        # A shard that is gone is noticed by the thread that listens to it.
        with contextlib.suppress(OSError):
            self.channel.send(**message)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Return when it has ended. A shard that is done has some time for it: its own workers have to end."""
        try:
            self.process.wait(_PATIENCE if self.done else 0)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.kill()
            self.process.wait()


class Coordinator:
    """Mutable: shards come and go, and report."""

    def __init__(self, plan: Plan, scheduler: RoundScheduler, tell: Callable[[Progress], None]) -> None:
        self._plan, self._scheduler, self._tell = plan, scheduler, tell
        self._shards: list[_ShardHandle] = []
        self._messages: queue.SimpleQueue[tuple[_ShardHandle, str]] = queue.SimpleQueue()
        self._news = threading.Event()
        self._claimed: set[str] = set()
        self._stops = 0
        self._stopped = math.inf  # when

    def work(self, command: Sequence[str], tasks: Sequence[Mapping[str, Any]]) -> Campaign:
        """Run one shard per task to its end. KeyboardInterrupt stops them all, and they keep their findings; it raises
        nowhere but where messages are waited for."""
        with held():
            try:
                for number, task in enumerate(tasks):
                    self._shards.append(_ShardHandle(number, command, task))
                    threading.Thread(target=self._listen, args=(self._shards[-1],), daemon=True).start()
                while not (all(shard.closed for shard in self._shards) and self._messages.empty()):
                    self._wait()
                    self._news.clear()
                    while not self._messages.empty():
                        self._receive(*self._messages.get())
                return merged([self._result(shard) for shard in self._shards])
            finally:
                for shard in self._shards:
                    shard.end()

    def _wait(self) -> None:
        """A moment for messages, or for an interrupt, which loses none of them. Shards that were stopped and go on are
        stopped again."""
        with contextlib.suppress(KeyboardInterrupt):
            with let_in():
                self._news.wait(_PAUSE)
            if time.monotonic() - self._stopped < _STOP_S or self._stops != 1:
                return
        self._stop()

    def _listen(self, shard: _ShardHandle) -> None:
        """Pass on each line, and an empty text at the end."""
        assert shard.process.stdout
        with contextlib.suppress(ValueError):  # a line that is not UTF-8 ends it, too
            for text in shard.process.stdout:
                self._messages.put((shard, text))
                self._news.set()
        self._messages.put((shard, ""))
        shard.closed = True
        self._news.set()

    def _receive(self, shard: _ShardHandle, text: str) -> None:
        """One line of a shard, or its end."""
        if text:
            try:
                message = json.loads(text)
                self._act(shard, message["say"], message)
            except (ValueError, KeyError, TypeError, BadRecord) as error:
                shard.trouble = f"it sent an invalid message: {text[:80]!r} ({type(error).__name__})"
                shard.signal(signal.SIGKILL)
        if not text:
            shard.ready = True  # no other shard waits for it
            self._go()
            self._lease(self._scheduler.leave(shard.number))

    def _go(self) -> None:
        """Start all clocks together."""
        if all(shard.ready for shard in self._shards):
            for shard in self._shards:
                if not shard.started:
                    shard.started = True
                    shard.send(go=True)

    def _lease(self, leases: Leases) -> None:
        for number, lease in leases:
            self._shards[number].send(**dataclasses.asdict(lease))

    def _act(self, shard: _ShardHandle, say: str, message: Mapping[str, Any]) -> None:
        match say:
            case "ready":
                shard.ready = True
                self._go()
            case "lease":
                request = LeaseRequest(round=message["round"], ran=message["ran"], drained=message["drained"])
                self._lease(self._scheduler.ask(shard.number, request))
            case "claim":
                shard.send(claimed=message["fingerprint"] not in self._claimed)
                self._claimed.add(message["fingerprint"])
            case "report" | "done":
                shard.campaign, shard.doing = Campaign.from_json(message["campaign"]), message["doing"]
                shard.done = say == "done"
                self._tell(self._progress())
                if shard.done and shard.campaign.stopped == "first finding":
                    self._stop()
            case _:
                raise ValueError(say)

    def _stop(self) -> None:
        """Stop all shards that are still at work, the first time in an orderly way."""
        self._stops, self._stopped = self._stops + 1, time.monotonic()
        for shard in self._shards:
            if not shard.done:
                shard.signal(signal.SIGTERM if self._stops == 1 else signal.SIGKILL)

    def _result(self, shard: _ShardHandle) -> Campaign:
        """This shard's campaign, as far as it was reported."""
        result = shard.campaign or CampaignStats(self._plan, time.monotonic).campaign("error")
        if shard.done:
            return result
        code = shard.process.wait()
        if self._stops and not shard.trouble:
            return dataclasses.replace(result, stopped="interrupted")
        how = shard.trouble or f"it ended: {signal.Signals(-code).name if code < 0 else f'exit {code}'}"
        error = f"worker {shard.number + 1} of {len(self._shards)}: {how}"
        return dataclasses.replace(result, stopped="error", error=error)

    def _progress(self) -> Progress:
        """The whole campaign so far."""
        whole = merged([shard.campaign for shard in self._shards if shard.campaign])
        doing = [shard.doing for shard in self._shards if not shard.done and shard.doing != "running"]
        return Progress(
            target=whole.target,
            cases=whole.cases,
            replays=whole.replays,
            seconds=whole.seconds,
            transitions=len(whole.transitions),
            transitions_possible=whole.transitions_possible,
            # A failure without a seed is about to be stored by the shard that triages it.
            findings=tuple(found for found in whole.findings if found.seed),
            doing=f"{len(self._shards)} workers; {doing[0] if doing else 'running'}",
        )
