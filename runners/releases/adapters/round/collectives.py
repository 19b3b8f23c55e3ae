"""The collectives that this rank calls, also those of graphs, which call them again at each replay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from runners.engines.active import engine


@dataclass(frozen=True, slots=True)
class Call:
    """is_own: it is among the ranks that serve this one's requests, and no others."""

    kind: str
    is_own: bool
    dtype: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class Calls:
    """Mutable: made are those since it was cleared, in their order."""

    made: list[Call] = field(default_factory=list)
    _of_graphs: WeakKeyDictionary[Any, list[Call]] = field(default_factory=WeakKeyDictionary)

    def note(self, kind: str, tensor: torch.Tensor, members: Collection[int], sharers: Collection[int]) -> None:
        """A call under way. members: ranks of the group. sharers: those that serve this one's requests."""
        call = Call(kind, set(members) <= set(sharers), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        graph = engine.capturing()
        (self.made if graph is None else self._of_graphs.setdefault(graph, [])).append(call)

    def replayed(self, graph: Any) -> None:
        """A graph calls what it called when it was captured."""
        self.made += self._of_graphs.get(graph, [])


# Of this process, whose groups of ranks last as long as it does.
CALLS = Calls()
