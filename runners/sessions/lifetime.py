"""What outlives a call and is nobody's but its caller's: the batch that was handed over, and those outputs that the
worker keeps. They are looked at again when later calls of the case have run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.releases.live import Outputs
from runners.sessions.memory import bits

COMPARED = "compared"
# In front of the names of what a caller handed over.
CALLERS = "caller's "


class Lifetime:
    """Of one case. Mutable. kept: the names of the outputs that the worker keeps while later graphs run."""

    def __init__(self, kept: Collection[str]) -> None:
        self._kept = sorted(kept)
        self._held: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def forget(self) -> None:
        """A case begins."""
        self._held = []

    def hold(self, step: int, handed: Mapping[str, torch.Tensor], outputs: Outputs) -> None:
        """A call has ended: what it was given, and what it gave."""
        named = {f"{CALLERS}{name}": tensor for name, tensor in handed.items()}
        named |= {name: outputs[name] for name in self._kept if name in outputs}
        self._held += [(f"{step}.{name}", tensor, tensor.clone()) for name, tensor in named.items() if tensor.numel()]

    def see(self, tape: StagingBuffer) -> None:
        """Record which rows of what earlier calls held have changed in any bit."""
        tape.see(Recorded.KEPT, COMPARED, len(self._held))
        for name, tensor, then in self._held:
            changed = bits(tensor) != bits(then)
            tape.see(Recorded.KEPT, name, changed.flatten(1).any(1) if changed.dim() > 1 else changed, as_slots=True)
