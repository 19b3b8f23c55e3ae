"""The schedule of chunks: two in flight a slot, lost ones again, each merged once, and a chunk that takes its node
with it again and again is given up. Nothing here runs, waits or knows a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# One runs, the next one waits behind it, so that a slot never waits for us.
IN_FLIGHT = 2
# A chunk that was under way whenever so many slots, agents or nodes went down is not tried again.
LOSSES_MAX = 4
# One that was under way so often may be the cause: it waits until all others are done, which may be lost with it.
LOSSES_SUSPECT = 2


class Named(Hashable, Protocol):
    """A piece of work. id: the same for the same work."""

    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(Generic[C]):
    """A chunk that was lost too often, and how it went."""

    chunk: C
    losses: tuple[str, ...]


class Schedule(Generic[C]):
    """Mutable. `fresh` gives the next unassigned chunk, or None."""

    def __init__(self, fresh: Callable[[], C | None], losses_max: int = LOSSES_MAX) -> None:
        self._fresh, self._losses_max = fresh, losses_max
        self._waiting: deque[C] = deque()  # lost once, or asked for in between: before all fresh ones
        self._suspects: deque[C] = deque()
        self._slots: dict[str, int] = {}
        self._at: dict[str, list[C]] = {}  # by node, in the order of sending
        self._losses: dict[str, list[str]] = {}
        self._merged: set[str] = set()
        self._known: set[str] = set()
        self.given_up: list[GivenUp[C]] = []
        self.lost: Counter[str] = Counter()  # how often something was lost, by reason

    def join(self, node: str, slots: int) -> None:
        """A node is ready for work on so many slots. Every agent that comes is a node of its own, by name."""
        self._slots[node] = slots
        self._at[node] = []

    def leave(self, node: str, why: str) -> None:
        """A node is gone, and with it all that it had. Only what had begun may be the cause."""
        slots = self._slots.pop(node, 0)
        for place, chunk in enumerate(self._at.pop(node, [])):
            self._again(chunk, why, begun=place < slots)

    def add(self, chunk: C) -> None:
        """One more, before all that are fresh; nothing if it has been added or given out before."""
        if chunk.id not in self._known:
            self._known.add(chunk.id)
            self._waiting.append(chunk)

    def next(self) -> tuple[str, C] | None:
        """A chunk to send and the node to send it to: the one with the fewest a slot. None if there is no room, or no
        chunk for now."""
        free = [node for node, slots in self._slots.items() if len(self._at[node]) < IN_FLIGHT * slots]
        if not free:
            return None
        chunk = self._next_chunk()
        if chunk is None:
            return None
        node = min(free, key=lambda candidate: len(self._at[candidate]) / self._slots[candidate])
        self._at[node].append(chunk)
        return node, chunk

    def _next_chunk(self) -> C | None:
        if self._waiting:
            return self._waiting.popleft()
        while (chunk := self._fresh()) is not None:
            if chunk.id not in self._known:
                self._known.add(chunk.id)
                return chunk
        return self._suspects.popleft() if self._suspects else None

    def lose(self, node: str, chunk: C, why: str) -> None:
        """A node says that it could not end this chunk: the process that ran it has died."""
        if chunk in self._at.get(node, ()):
            self._at[node].remove(chunk)
            self._again(chunk, why, begun=True)

    def finish(self, node: str, chunk: C) -> bool:
        """A result has come. Whether it is the first one of this chunk: only then is it to be merged."""
        if chunk in self._at.get(node, ()):
            self._at[node].remove(chunk)
        if chunk.id in self._merged:
            return False
        self._merged.add(chunk.id)
        # A node that seemed lost may answer after all, while another one has begun.
        self._waiting = deque(other for other in self._waiting if other.id != chunk.id)
        self._suspects = deque(other for other in self._suspects if other.id != chunk.id)
        self.given_up = [other for other in self.given_up if other.chunk.id != chunk.id]
        return True

    def _again(self, chunk: C, why: str, *, begun: bool) -> None:
        if chunk.id in self._merged:
            return
        if begun:
            self.lost[why] += 1
            losses = self._losses.setdefault(chunk.id, [])
            losses.append(why)
            if len(losses) >= self._losses_max:
                self.given_up.append(GivenUp(chunk=chunk, losses=tuple(losses)))
                return
        suspect = len(self.losses(chunk)) >= LOSSES_SUSPECT
        if not any(other.id == chunk.id for other in (*self._waiting, *self._suspects)):
            (self._suspects if suspect else self._waiting).append(chunk)

    def losses(self, chunk: C) -> tuple[str, ...]:
        """The losses of this chunk so far, with their reasons."""
        return tuple(self._losses.get(chunk.id, ()))

    def forget_waiting(self) -> None:
        """Nothing that has not been sent will be."""
        self._waiting.clear()
        self._suspects.clear()

    @property
    def nodes(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> int:
        return sum(self._slots.values())

    @property
    def in_flight(self) -> int:
        return sum(map(len, self._at.values()))

    @property
    def idle(self) -> bool:
        """True if nothing is in flight or waits; fresh ones there may be."""
        return not self._waiting and not self._suspects and not self.in_flight
