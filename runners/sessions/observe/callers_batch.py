"""The caller's batch before a call, and as either path leaves it."""

from __future__ import annotations

from repro.traces.paths import Recorded
from runners.releases.live import Outputs
from runners.sessions.observe.observer import Call, Observer

_AFTER = {Recorded.GRAPH: Recorded.AFTER_GRAPH, Recorded.EAGER: Recorded.AFTER_EAGER}


class CallersBatch(Observer):
    """The fields that the runner's family names."""

    def before(self, call: Call) -> None:
        if call.path is Recorded.GRAPH:
            self._see(call, Recorded.BEFORE)

    def after(self, call: Call, outputs: Outputs) -> None:
        if call.path in _AFTER and not call.alone:
            self._see(call, _AFTER[call.path])

    def _see(self, call: Call, path: Recorded) -> None:
        for name, value in self.captured.adapter.family.caller(call.batch).items():
            call.staging.see(path, name, value)
