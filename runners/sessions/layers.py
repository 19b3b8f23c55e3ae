"""The layers of a draft that are models of their own: the graph of each is a launch by itself, of the batch that the
layer before it has moved up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from runners.releases.adapters.draft_extend.adapter import accepted

PREPARES, REPLAYS = "prepare", "replay"
# Told that a layer's graph is launched with this batch, and what of it is not as the batch says; and given its results.
Begun = Callable[[int, Any, Mapping[str, torch.Tensor]], None]
Ended = Callable[[Any], Any]


def are_launched(runner: Any) -> bool:
    """True of sglang's composite of a runner for each layer."""
    return hasattr(runner, "rotates_in_graph")


def launched_alone(runner: Any) -> list[Any]:
    """The runners whose graphs are launched one after the other; of one graph for all layers the composite."""
    return [runner] if runner.rotates_in_graph else list(runner.runners)


@dataclass(slots=True)
class Layers:
    """Listens to a composite while entered. Mutable: it holds the batch under way, and the tokens of its next layer."""

    runner: Any
    begun: Begun
    ended: Ended
    _batch: Any = None
    _moved: dict[str, torch.Tensor] = field(default_factory=dict)

    @contextmanager
    def listened(self) -> Iterator[None]:
        prepares, replays = getattr(self.runner, PREPARES), getattr(self.runner, REPLAYS)

        def prepare(batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._batch, self._moved = batch, {}
            self.begun(0, batch, self._moved)
            return prepares(batch, *args, **kwargs)

        def replay(layer: int) -> Any:
            if layer and not self.runner.rotates_in_graph:
                self.begun(layer, self._batch, self._moved)
            returned = replays(layer)
            self._moved = {"input_ids": self._moved_up(returned[2])}
            return self.ended(returned)

        setattr(self.runner, PREPARES, prepare)
        setattr(self.runner, REPLAYS, replay)
        try:
            yield
        finally:
            delattr(self.runner, PREPARES)
            delattr(self.runner, REPLAYS)

    def _moved_up(self, drawn: torch.Tensor) -> torch.Tensor:
        """The next layer's tokens: those of each request move up by one, and what was drawn takes the place of the last
        accepted one."""
        count = int(self._batch.batch_size)
        rows = self._moved.get("input_ids", self._batch.input_ids).view(count, -1)
        moved = torch.cat((rows[:, 1:], rows[:, -1:]), dim=1)
        last = accepted(self._batch)[:count, None].long() - 1
        return moved.scatter(1, last, drawn.to(moved.dtype)).view(-1)
