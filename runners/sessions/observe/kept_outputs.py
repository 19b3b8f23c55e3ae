"""The batch that a caller handed over, and the outputs that the worker keeps (Family.kept): they outlive the call, and
are looked at again when later calls of the case have run."""

from __future__ import annotations

import torch

from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.releases.live import Outputs
from runners.sessions.captured import Captured
from runners.sessions.memory import bits
from runners.sessions.observe.observer import Call, Observer

# In front of the names of what a caller handed over.
CALLERS = "caller's "


class KeptOutputs(Observer):
    """The rows that have changed in any bit. Mutable: holds what the calls of one case had."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured)
        self._held: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def once(self, staging: StagingBuffer) -> None:
        self._held = []

    def after(self, call: Call, outputs: Outputs) -> None:
        if not call.by_graph:
            return
        if not call.whole:
            kept = sorted(self.captured.adapter.family.kept)
            named = {f"{CALLERS}{name}": tensor for name, tensor in call.handed.items()}
            named |= {name: outputs[name] for name in kept if name in outputs}
            self._held += [(f"{call.number}.{name}", t, t.clone()) for name, t in named.items() if t.numel()]
            return
        call.staging.see(Recorded.KEPT, "compared", len(self._held))
        for name, tensor, then in self._held:
            changed = bits(tensor) != bits(then)
            changed = changed.flatten(1).any(1) if changed.dim() > 1 else changed
            call.staging.see(Recorded.KEPT, name, changed, as_slots=True)
