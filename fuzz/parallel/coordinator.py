"""Several processes at work on one campaign: starts them, deals them cases, lets one of them settle each failure, and
makes one campaign of what they did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzz.parallel.merge import merged
from fuzz.parallel.scheduler import Deal, Grants, Wish
from fuzz.parallel.shard import Line
from fuzz.stats import Plan, Tally
from repro.traces.campaign import BadRecord, Campaign, Progress

# Seconds after which it is looked again whether all have ended; what they say is heard at once.
_PAUSE = 0.2
_PATIENCE = 10.0


class _Hand:
    """One member, seen from here. Mutable."""

    def __init__(self, number: int, command: Sequence[str], task: Mapping[str, Any]) -> None:
        self.number = number
        # A group of its own: Ctrl-C reaches it from us alone, and once.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        assert self.process.stdin and self.process.stdout
        self.line = Line(self.process.stdout, self.process.stdin)
        self.account: Campaign | None = None
        self.done = self.ready = self.started = self.closed = False
        self.doing = "starting"
        self.trouble = ""
        self.say(**task)

    def say(self, **message: Any) -> None:
        # If it is gone, its end is noticed where it is listened to.
        with contextlib.suppress(OSError):
            self.line.tell(**message)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Return when it has ended. One that has told everything has some time for it: its own workers have to end."""
        try:
            self.process.wait(_PATIENCE if self.done else 0)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.kill()
            self.process.wait()


class Crew:
    """Mutable: members come and go, and tell what they did."""

    def __init__(self, plan: Plan, deal: Deal, tell: Callable[[Progress], None]) -> None:
        self._plan, self._deal, self._tell = plan, deal, tell
        self._hands: list[_Hand] = []
        self._heard: queue.SimpleQueue[tuple[_Hand, str]] = queue.SimpleQueue()
        self._claimed: set[str] = set()
        self._stops = 0

    def work(self, command: Sequence[str], tasks: Sequence[Mapping[str, Any]]) -> Campaign:
        """Run one member per task to its end. KeyboardInterrupt stops them all, and they keep what they found."""
        try:
            for number, task in enumerate(tasks):
                self._hands.append(_Hand(number, command, task))
                threading.Thread(target=self._listen, args=(self._hands[-1],), daemon=True).start()
            while not (all(hand.closed for hand in self._hands) and self._heard.empty()):
                try:
                    self._take(*self._heard.get(timeout=_PAUSE))
                except queue.Empty:
                    continue
                except KeyboardInterrupt:
                    self._stop()
            return merged([self._told(hand) for hand in self._hands])
        finally:
            for hand in self._hands:
                hand.end()

    def _listen(self, hand: _Hand) -> None:
        """Pass on each line, and an empty text at the end."""
        assert hand.process.stdout
        with contextlib.suppress(ValueError):  # what is no text ends it, too
            for text in hand.process.stdout:
                self._heard.put((hand, text))
        self._heard.put((hand, ""))
        hand.closed = True

    def _take(self, hand: _Hand, text: str) -> None:
        """One line of a member, or its end."""
        if text:
            try:
                message = json.loads(text)
                self._act(hand, message["say"], message)
            except (ValueError, KeyError, TypeError, BadRecord) as error:
                hand.trouble = f"it said what makes no sense: {text[:80]!r} ({type(error).__name__})"
                hand.signal(signal.SIGKILL)
        if not text:
            hand.ready = True  # nobody need wait for it
            self._go()
            self._give(self._deal.leave(hand.number))

    def _go(self) -> None:
        """Start all clocks together."""
        if all(hand.ready for hand in self._hands):
            for hand in self._hands:
                if not hand.started:
                    hand.started = True
                    hand.say(go=True)

    def _give(self, grants: Grants) -> None:
        for number, grant in grants:
            self._hands[number].say(**dataclasses.asdict(grant))

    def _act(self, hand: _Hand, say: str, message: Mapping[str, Any]) -> None:
        match say:
            case "ready":
                hand.ready = True
                self._go()
            case "wish":
                wish = Wish(round=message["round"], ran=message["ran"], drained=message["drained"])
                self._give(self._deal.ask(hand.number, wish))
            case "claim":
                hand.say(claimed=message["fingerprint"] not in self._claimed)
                self._claimed.add(message["fingerprint"])
            case "account" | "done":
                hand.account, hand.doing = Campaign.from_json(message["campaign"]), message["doing"]
                hand.done = say == "done"
                self._tell(self._progress())
                if hand.done and hand.account.stopped == "first finding":
                    self._stop()
            case _:
                raise ValueError(say)

    def _stop(self) -> None:
        """Have all that are still at work stop, the first time in an orderly way."""
        self._stops += 1
        for hand in self._hands:
            if not hand.done:
                hand.signal(signal.SIGINT if self._stops == 1 else signal.SIGKILL)

    def _told(self, hand: _Hand) -> Campaign:
        """What this member did, as far as it came to tell."""
        told = hand.account or Tally(self._plan, time.monotonic).campaign("error")
        if hand.done:
            return told
        code = hand.process.wait()
        if self._stops and not hand.trouble:
            return dataclasses.replace(told, stopped="interrupted")
        how = hand.trouble or f"it ended: {signal.Signals(-code).name if code < 0 else f'exit {code}'}"
        error = f"worker {hand.number + 1} of {len(self._hands)}: {how}"
        return dataclasses.replace(told, stopped="error", error=error)

    def _progress(self) -> Progress:
        """All of it together, so far."""
        whole = merged([hand.account for hand in self._hands if hand.account])
        doing = [hand.doing for hand in self._hands if not hand.done and hand.doing != "running"]
        return Progress(
            target=whole.target,
            cases=whole.cases,
            replays=whole.replays,
            seconds=whole.seconds,
            transitions=len(whole.transitions),
            transitions_possible=whole.transitions_possible,
            # Of a failure that another is about to store, its member tells.
            findings=tuple(found for found in whole.findings if found.seed),
            doing=f"{len(self._hands)} workers; {doing[0] if doing else 'running'}",
        )
