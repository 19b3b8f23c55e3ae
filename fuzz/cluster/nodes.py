"""A driver's view of a cluster: nodes that come and go, and their messages on the work that they were sent.
on_ray.py and processes.py have one each; tests have another, in which everything that can be lost is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fuzz.cluster.schedule import Named

# In front of how many nodes are to be started on this machine.
LOCAL = "local:"


class Work(Named, Protocol):
    """Work that can be sent to a node: a chunk of a campaign, or a piece of a command."""

    @property
    def name(self) -> str:
        """For a person."""

    def to_json(self) -> dict[str, Any]: ...


W = TypeVar("W", bound=Work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node is ready for work. Its name is used for this agent alone."""

    node: str
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A node cannot take part: another checkout, or it lacks the target."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A node, or its agent, is gone with all that it had."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[W]):
    """A node's message on a chunk: its result, or `lost`, how its process died, or neither: not begun."""

    node: str
    chunk: W
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """The work that the slots of a node are at: `cases`, `replays`, `doing` of each busy one."""

    node: str
    slots: Sequence[Mapping[str, Any]]


Event = Joined | Refused | Left | Answer[W] | Doing


class Nodes(Protocol[W]):
    """A cluster. No method raises because a node is gone: wait() says so."""

    def send(self, node: str, chunk: W, seconds: float | None) -> None:
        """Have a node do a chunk. seconds: after which it begins no further case."""

    def wait(self, seconds: float) -> Sequence[Event[W]]:
        """The events since the last call, after this time at the latest."""

    def interrupt(self) -> None:
        """Have all chunks end with what they have come to."""
