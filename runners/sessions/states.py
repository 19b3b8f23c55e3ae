"""The recurrent states of a session, beside its KV cache: what lies in them before a step, and what each path leaves.

Where no layer is recurrent there are none, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import state_slots
from repro.traces.paths import Recorded
from runners.engines.sending import sent
from runners.engines.staging import StagingBuffer
from runners.recording.observer import HarnessError
from runners.releases.options import recurrent
from runners.sessions import memory

# In front of the kinds of states that graph and eager left with other bits.
DIFFER = "differ."


class States:
    """States by kind, each in as many slots as the others, and which slot each request slot has. Mutable: slots move
    from layout to layout."""

    def __init__(self, model_runner: Any, setup: Setup) -> None:
        self.setup = setup
        self.kinds = recurrent.of_kinds(model_runner)
        self.of_drafts = recurrent.of_drafts(model_runner)
        self.rows = [layer for layers in self.kinds.values() for layer in layers]
        self.snapshots = {kind: memory.Snapshots(layers) for kind, layers in self.kinds.items()}
        self._mapping = recurrent.slots_of_requests(model_runner) if self.rows else None
        self._filling: memory.Filling | None = None
        self.lay_out(0)

    def filled_from(self, values: torch.Tensor) -> None:
        """Have states filled from these values, as KV caches are."""
        if self.rows:
            self._filling = memory.Filling(self.rows, values)

    def lay_out(self, layout: int) -> None:
        """Have request slots own state slots by this layout."""
        self.slots = state_slots(self.setup, layout)
        if self._mapping is None:
            return
        if self.slots.max() >= len(self.rows[0]):
            raise HarnessError(f"there are {len(self.rows[0])} state slots, the layout needs {self.slots.max() + 1}")
        self._mapping[: len(self.slots)] = torch.from_numpy(self.slots).to(self._mapping)

    def fill(self, step: int, requests: Sequence[Request]) -> None:
        """Put each request's state into its slot, from its `data`, into others what differs from step to step, and
        into the room for drafts' states no numbers."""
        if self._filling is None:
            return
        owned = self.slots[[request.slot for request in requests]] if requests else self.slots[:0]
        others = np.setdiff1d(np.arange(len(self.rows[0])), owned)
        self._filling.fill(step, [(r, owned[row : row + 1]) for row, r in enumerate(requests)], others)
        for tensor in self.of_drafts.values():
            tensor.fill_(torch.nan)

    def static(self) -> dict[str, torch.Tensor]:
        """All that outlives a call, by name."""
        rows = {f"{kind}_states.{n}": layer for kind, layers in self.kinds.items() for n, layer in enumerate(layers)}
        mapping = {} if self._mapping is None else {"state_slots": self._mapping}
        return {**rows, **self.of_drafts, **mapping}

    def see_slots(self, staging: StagingBuffer, paths: Sequence[Recorded], requests: Sequence[Request]) -> None:
        """Record the state slots that requests own, and those that the paths had changed when their snapshots were
        taken."""
        if not self.rows:
            return
        staging.see(Recorded.STATE_SLOTS, "owned", self._owned(requests))
        for kind, snapshots in self.snapshots.items():
            by_graph, by_eager, between = snapshots.compare()
            for path, changed in ((Recorded.GRAPH, by_graph), (Recorded.EAGER, by_eager)):
                if path in paths:
                    staging.see(Recorded.STATE_SLOTS, f"{path}.{kind}", changed, as_slots=True)
            if len(paths) > 1:
                staging.see(Recorded.STATE_SLOTS, f"{DIFFER}{kind}", between, as_slots=True, tell=False)

    def see_values(
        self, staging: StagingBuffer, path: str, requests: Sequence[Request], moment: int | None = None
    ) -> None:
        """Record the requests' states, as they are or as they were at this moment."""
        slots = sent(torch.from_numpy(self._owned(requests)), self.rows[0].device) if self.rows else None
        for kind, snapshots in self.snapshots.items():
            rows = self.kinds[kind] if moment is None else snapshots.kept(moment)
            staging.see(Recorded.STATE_VALUES, f"{path}.{kind}", memory.contents(rows, slots).float())

    def _owned(self, requests: Sequence[Request]) -> np.ndarray:
        return self.slots[[request.slot for request in requests]] if requests else self.slots[:0]
