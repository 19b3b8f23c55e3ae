"""Who works: the nodes that have come, what each is at, and the schedule of what they are sent. What a result means is
for the owner of this dispatcher: of a campaign (drive.py), or of a command that is cut into pieces (fan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic

from fuzz.cluster.nodes import Answer, Doing, Event, Joined, Left, Nodes, Refused, W
from fuzz.cluster.schedule import Schedule

# Seconds after which we look again whether something is over.
PAUSE_S = 0.5
# Without a single node for so long the work cannot go on.
ALONE_S = 120.0
# After an interrupt: for what is under way to say what it has come to.
PATIENCE_S = 5.0


class Dispatcher(Generic[W]):
    """Mutable. fresh: the next unassigned chunk, or None. say: one line for a person. clock: seconds,
    rising."""

    def __init__(
        self,
        nodes: Nodes[W],
        fresh: Callable[[], W | None],
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.schedule: Schedule[W] = Schedule(fresh)
        self.began = clock()  # when the first node came; what Ray and the agents need to start is no part of the work
        self.most_slots = 0
        self.doing: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._nodes, self._say, self._clock = nodes, say, clock
        self._met = clock()  # when there was a node last
        self._refused: dict[str, str] = {}
        self._said: set[str] = set()  # why something was lost

    def send(self, seconds: float | None = None) -> bool:
        """Send one chunk, if there is one and room for it. seconds: after which no further case is begun."""
        sent = self.schedule.next()
        if sent:
            self._nodes.send(*sent, seconds)
        return sent is not None

    def hear(self) -> Iterator[Answer[W]]:
        """The answers that come back within a moment. A reason for a loss is reported once."""
        for event in self._nodes.wait(PAUSE_S):
            if isinstance(event, Answer):
                yield event
            else:
                self._take(event)
        for why in sorted(self.schedule.lost.keys() - self._said):
            self._said.add(why)
            self._say(f"lost, and done again: {why}")

    def _take(self, event: Event[W]) -> None:
        match event:
            case Joined():
                if not self.most_slots:
                    self.began = self._clock()
                self.schedule.join(event.node, event.slots)
                self.most_slots = max(self.most_slots, self.schedule.slots)
            case Refused():
                if event.why not in self._refused.values():
                    self._say(f"node {event.node} takes no part: {event.why}")
                self._refused[event.node] = event.why
            case Left():
                self._refused[event.node] = event.why
                self.doing.pop(event.node, None)
                self.schedule.leave(event.node, event.why)
            case Doing():
                self.doing[event.node] = event.slots

    def trouble(self) -> str:
        """Why the work cannot go on; empty if it can."""
        now = self._clock()
        self._met = now if self.schedule.nodes else self._met
        if now - self._met <= ALONE_S:
            return ""
        why = "; ".join(dict.fromkeys(self._refused.values())) or "none came, or all were lost"
        return f"no node of the cluster could be used for {ALONE_S:.0f} s: {why}"

    def stop(self) -> Iterator[Answer[W]]:
        """Have what is under way end, and hear what it has come to."""
        self.schedule.forget_waiting()
        self._nodes.interrupt()
        until = self._clock() + PATIENCE_S
        while self.schedule.in_flight and self._clock() < until:
            yield from self.hear()

    def given_up(self) -> list[str]:
        """The work that was lost too often, a line each."""
        return [
            f"{lost.chunk.name} given up after {len(lost.losses)} losses: {'; '.join(dict.fromkeys(lost.losses))}"
            for lost in self.schedule.given_up
        ]
