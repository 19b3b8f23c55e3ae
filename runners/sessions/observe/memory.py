"""Kernels' use of memory while graphs were captured, and since."""

from __future__ import annotations

from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.sessions.captured import Captured
from runners.sessions.observe.observer import Observer


class MemoryAccess(Observer):
    """At capture, for every case; a step says itself when it ends."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured)
        self._at_capture = engine.memory_seen()

    def once(self, staging: StagingBuffer) -> None:
        for name, value in self._at_capture.items():
            staging.see(Recorded.MEMORY, name, value)


def see_memory(staging: StagingBuffer) -> None:
    """Record what kernels did to memory since this was last asked."""
    for name, value in engine.memory_seen().items():
        staging.see(Recorded.MEMORY, name, value)
    staging.hold()
