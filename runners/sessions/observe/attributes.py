"""The attributes of runner, workers and backends that a call leaves changed, and those that none of them ever had."""

from __future__ import annotations

import numpy as np

from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.releases.live import Outputs
from runners.sessions.attributes import attributes, changed, moved
from runners.sessions.captured import Captured
from runners.sessions.observe.observer import Call, Observer


class Attributes(Observer):
    """Mutable: remembers what they were before the call."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured)
        self._before: dict[str, str] = {}

    def once(self, staging: StagingBuffer) -> None:
        for name in ("compared", *self.captured.unmade):
            staging.see(Recorded.UNMADE, name, 1)

    def before(self, call: Call) -> None:
        if self._is_compared(call):
            self._before = attributes(self.captured.owners)

    def after(self, call: Call, outputs: Outputs) -> None:
        if not self._is_compared(call):
            return
        now = attributes(self.captured.owners)
        call.staging.see(Recorded.ATTRIBUTES, "compared", len(self._before))
        # A pool that an earlier call kept is no change of this one: backends are held to what they were built with.
        lent = moved(self.captured.backends, self.captured.pools)
        for name, words in (changed(self._before, now) | lent).items():
            call.staging.see(Recorded.ATTRIBUTES, name, np.frombuffer(words, dtype=np.uint8))

    def _is_compared(self, call: Call) -> bool:
        return call.whole and call.by_graph and self.captured.history is not None
