"""The float64 passes of a scheduler's models, for each version of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.cases.case import Setup, Step
from repro.cases.rows.adapters import ADAPTERS
from repro.cases.sharing import share_of
from repro.cases.updates import VERSIONS, updates, version_of
from runners.engines.active import engine
from runners.releases.adapters.round import scheduler as serving
from runners.releases.options import lora
from runners.releases.reference.drafters import drafter
from runners.releases.reference.served import Teacher
from runners.sessions.versions import Versions


@dataclass(slots=True)
class Teachers:
    """Mutable: it learns the weights of an update with the first case that has one. unjudged: why nothing is known of
    drafts; empty if it is."""

    scheduler: Any
    setup: Setup
    versions: Versions
    unjudged: str = ""
    _of: list[Teacher] = field(default_factory=list)
    _steps: Sequence[Step] = ()

    def __post_init__(self) -> None:
        self._learn()

    def prepare(self, steps: Sequence[Step]) -> None:
        """Have the models the weights that they start with, and know all that these steps bring."""
        self._steps = steps
        self.versions.put(0)
        if updates(steps) and len(self._of) < VERSIONS:
            self.versions.make()
            self.versions.put(len(self._of))
            self._learn()
            self.versions.put(0)

    def version(self, number: int) -> int:
        """The weights that requests of this step come behind."""
        return version_of(self._steps, number)

    def of(self, number: int) -> Teacher:
        """The teacher of those weights."""
        return self._of[self.version(number)]

    def _learn(self) -> None:
        model, share = self.scheduler.tp_worker.model_runner, share_of(self.setup)
        target, *drafts = serving.models(self.scheduler)
        known = drafter(share, target, drafts)
        self.unjudged = known if isinstance(known, str) else ""
        made = Teacher(
            target,
            share.vocab_size,
            model.dtype,
            model.token_to_kv_pool.dtype,
            on_gpu=engine.device != "cpu",
            deterministic=self.setup.deterministic,
            drafter=None if isinstance(known, str) else known,
            adapted=[lora.merged(self.setup, target, each + 1) for each in range(ADAPTERS * self.setup.enable_lora)],
        )
        self._of.append(made)
