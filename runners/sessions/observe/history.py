"""The differences that another history makes to a call, and the KV slots that its kernels read."""

from __future__ import annotations

from repro.traces.paths import Recorded
from repro.traces.trace import NOTHING, STALE
from runners.releases.live import Outputs
from runners.sessions.history import History
from runners.sessions.observe.observer import Call, Observer


class OtherHistory(Observer):
    """Compares a call with its run in another history; notes the reads of an eager pass alone."""

    def before(self, call: Call) -> None:
        if history := self._history(call):
            call.during.enter_context(history.watching(at_once=call.alone))

    def launched(self, call: Call) -> None:
        if history := self._history(call):
            history.launched(call.staging)

    def after(self, call: Call, outputs: Outputs) -> None:
        history, reserved = self._history(call), self.captured.setup.page_size
        if history is None:
            return
        if call.alone:
            history.see_reads(call.staging, reserved)
            return
        stale = history.end(call.staging, outputs, len(call.requests), reserved)
        call.watch.fact(STALE, stale or NOTHING)

    def _history(self, call: Call) -> History | None:
        is_seen = call.alone if call.path is Recorded.EAGER else call.whole and call.by_graph
        return self.captured.history if is_seen else None
