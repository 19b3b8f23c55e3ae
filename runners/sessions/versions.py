"""The weights of a scheduler's models: those that it starts with, and those that an update sends it.

The second ones are made once, by the maker of the first ones. A case sends them in sglang's messages; between the
passes over a case the harness puts either back by copying, each parameter into the memory that graphs read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from repro.cases.case import Setup
from runners.engines.active import engine
from runners.releases.adapters.round import blocks, mixing, updating, weights
from runners.releases.adapters.round import scheduler as serving
from runners.sessions.noise import scale, scaled_for_now

_EMBEDDINGS = "embed"


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of a module's, where the module keeps it, and the memory in which it lay when graphs were captured."""

    owner: dict[str, Any]
    name: str
    tensor: torch.Tensor
    memory: torch.Tensor

    def now(self) -> torch.Tensor:
        values: torch.Tensor = self.owner[self.name]
        return values.detach().clone()

    def put(self, contents: torch.Tensor) -> None:
        """Have it hold this in its first memory, whatever took its place."""
        self.owner[self.name] = self.tensor
        if self.tensor.data_ptr() != self.memory.data_ptr():
            self.tensor.data = self.memory
        self.memory.copy_(contents)


@dataclass(slots=True)
class Versions:
    """Mutable: it knows the weights that the models have now, and by what their embeddings are multiplied."""

    scheduler: Any
    setup: Setup
    now: int = 0
    _factor: float = 1.0
    _parts: list[_Part] = field(default_factory=list)
    _contents: list[list[torch.Tensor]] = field(default_factory=list)
    _named: list[tuple[updating.Named, updating.Named]] = field(default_factory=list)

    def make(self) -> None:
        """Once: copy the first weights, and make those of an update."""
        if self._contents:
            return
        target, *drafts = serving.models(self.scheduler)
        owners = [module for network in (target, *drafts) for module in network.modules()]
        places = [
            (owner, name)
            for module in owners
            for owner in (module._parameters, module._buffers, vars(module))
            for name in owner
        ]
        self._parts = [
            _Part(owner, name, tensor, tensor.detach())
            for owner, name in places
            if isinstance(tensor := owner[name], torch.Tensor)
        ]
        self._copy(target, drafts)
        with mixing.updated():
            for count in range(1, 2 + len(drafts) * updating.reaches_draft()):
                weights.fill_last([target, *drafts][:count], self.setup, engine.device)
        self._copy(target, drafts)
        self._keep_weights()
        self.put(0)

    def _copy(self, target: Any, drafts: Sequence[Any]) -> None:
        self._contents.append([part.now() for part in self._parts])
        of_drafts = [updating.of_draft(draft, self.setup.algorithm) for draft in drafts]
        draft = {name: values for named in of_drafts for name, values in named.items()}
        self._named.append((updating.of_target(target), draft))

    def _keep_weights(self) -> None:
        """Forget all other tensors: those that are no parameters, and the same in both."""
        first, second = self._contents
        kept = [
            place
            for place, part in enumerate(self._parts)
            if isinstance(part.tensor, torch.nn.Parameter) or not torch.equal(first[place], second[place])
        ]
        self._parts = [self._parts[place] for place in kept]
        self._contents = [[contents[place] for place in kept] for contents in self._contents]

    def messages(self) -> list[Any]:
        """The messages that turn these weights into the other ones."""
        return updating.messages(*self._named[1 - self.now], self.setup.algorithm)

    def updated(self) -> None:
        """Say that they have been answered."""
        self.now = 1 - self.now
        self._move()

    def put(self, version: int) -> None:
        """Have the models hold these weights, without a message."""
        if self._contents:
            for part, contents in zip(self._parts, self._contents[version], strict=True):
                part.put(contents)
            blocks.derive(self.scheduler.draft_worker)
            self.now = version
            self._move()

    @contextmanager
    def moved(self, factor: float) -> Iterator[None]:
        """While entered, token embeddings of both models, of which the draft may have the target's own, are these times
        what they were, of every version: each entry up or down, which a norm leaves as it is."""
        self._factor = factor
        try:
            with scaled_for_now(self._embeddings(), factor, unevenly=True) if factor != 1.0 else nullcontext():
                yield
        finally:
            self._factor = 1.0

    def _move(self) -> None:
        if self._factor != 1.0:
            scale(self._embeddings(), self._factor, unevenly=True)

    def _embeddings(self) -> list[torch.Tensor]:
        parameters = (p for model in serving.models(self.scheduler) for p in model.named_parameters())
        return list({values.data_ptr(): values.data for name, values in parameters if _EMBEDDINGS in name}.values())
