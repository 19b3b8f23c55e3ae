"""The wire of a scheduler: requests that come and messages that go, where a server has sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runners.releases.adapters.round.others import Others

# What arrives in an iteration of the event loop, of which this is called at the beginning.
Arriving = Callable[[], Sequence[Any]]


class EndOfLoop(Exception):
    """Ends an event loop, which has no end of its own."""


def nothing() -> Sequence[Any]:
    """While no case is served."""
    return ()


@dataclass(slots=True)
class Wire:
    """Mutable: arriving changes with each case, sent gathers messages of sglang's. others: the other rank, if any."""

    arriving: Arriving = nothing
    sent: list[Any] = field(default_factory=list)
    others: Others = field(default_factory=Others)

    def send_output(self, output: Any, recv_obj: object = None) -> None:
        """Keep a message; the form is that of sglang's sender."""
        self.sent.append(output)
