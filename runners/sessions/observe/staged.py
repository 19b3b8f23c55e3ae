"""Input buffers that no family names: what the batch has for them, and what the graph is launched with."""

from __future__ import annotations

import torch

from repro.cases.exemptions import exempted
from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.releases.catalogue import present_release
from runners.sessions.captured import Captured
from runners.sessions.observe.observer import Call, Observer


class Staged(Observer):
    """And how large all input buffers are. Mutable: holds which part of which buffer the batch fills."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured)
        self._filled: dict[str, tuple[slice, ...]] = {}

    def once(self, staging: StagingBuffer) -> None:
        for name, tensor in {**self.captured.buffers, **self.captured.further}.items():
            staging.see(Recorded.ROOM, name, tuple(tensor.shape))

    def before(self, call: Call) -> None:
        """A fact of the trace names those that are not watched."""
        self._filled = {}
        if not self.captured.further or not call.by_graph:
            return
        unwatched = []
        setup, release = self.captured.setup, present_release()
        otherwise_filled = exempted("staged", setup, release)
        optional = exempted("unwatched", setup, release)
        for name, buffer in self.captured.further.items():
            owners = (call.batch, getattr(call.batch, "spec_info", None))
            fields = (getattr(owner, name, None) for owner in owners)
            field = next((value for value in fields if isinstance(value, torch.Tensor)), None)
            if name in otherwise_filled:
                continue
            if field is not None and field.dim() == buffer.dim():
                self._filled[name] = tuple(slice(size) for size in field.shape)
                call.staging.see(Recorded.FIELD, name, field.clone())
            elif name not in optional:
                unwatched.append(name)
        if unwatched:
            call.watch.fact("unwatched", ", ".join(sorted(unwatched)))

    def launched(self, call: Call) -> None:
        if call.launches == 1:
            for name, part in self._filled.items():
                call.staging.see(Recorded.STAGED, name, self.captured.further[name][part])
