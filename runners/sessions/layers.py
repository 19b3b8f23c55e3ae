"""The layers of a draft that are models of their own: the graph of each is a launch by itself, of the batch that the
layer before it has moved up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from runners.releases.adapters.draft_extend.adapter import accepted

PREPARES, REPLAYS = "prepare", "replay"
# The function by whose name a worker draws a random token behind a layer's graph, in the place of the likeliest.
SAMPLES = "sample_draft_proposal"
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
    """Listens to a composite while entered. Mutable: it holds the batch under way, the tokens of its layer, and those
    that were drawn behind it."""

    runner: Any
    begun: Begun
    ended: Ended
    _batch: Any = None
    _moved: dict[str, torch.Tensor] = field(default_factory=dict)
    _drawn: torch.Tensor | None = None

    @contextmanager
    def listened(self) -> Iterator[None]:
        prepares, replays = getattr(self.runner, PREPARES), getattr(self.runner, REPLAYS)

        def prepare(batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._batch, self._moved = batch, {}
            self.begun(0, batch, self._moved)
            return prepares(batch, *args, **kwargs)

        def replay(layer: int) -> Any:
            if layer and self._drawn is not None and not self.runner.rotates_in_graph:
                self._moved = {"input_ids": self._moved_up(self._drawn)}
                self.begun(layer, self._batch, self._moved)
            returned = replays(layer)
            self._drawn = returned[2].clone()
            return self.ended(returned)

        setattr(self.runner, PREPARES, prepare)
        setattr(self.runner, REPLAYS, replay)
        try:
            with self._draws_noted():
                yield
        finally:
            delattr(self.runner, PREPARES)
            delattr(self.runner, REPLAYS)

    @contextmanager
    def _draws_noted(self) -> Iterator[None]:
        module = sys.modules[type(self.runner.eagle_worker).__module__]
        samples = getattr(module, SAMPLES, None)
        if samples is None:  # before 0.5.16
            yield
            return

        def sample(*args: Any, **kwargs: Any) -> Any:
            result = samples(*args, **kwargs)
            self._drawn = result[2].clone()
            return result

        setattr(module, SAMPLES, sample)
        try:
            yield
        finally:
            setattr(module, SAMPLES, samples)

    def _moved_up(self, drawn: torch.Tensor) -> torch.Tensor:
        """The next layer's tokens: those of each request move up by one, and what was drawn takes the place of the last
        accepted one."""
        count = int(self._batch.batch_size)
        rows = self._moved.get("input_ids", self._batch.input_ids).view(count, -1)
        moved = torch.cat((rows[:, 1:], rows[:, -1:]), dim=1)
        last = accepted(self._batch)[:count, None].long() - 1
        return moved.scatter(1, last, drawn.to(moved.dtype)).view(-1)
