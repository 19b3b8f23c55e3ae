"""The metadata that attention reads in a call."""

from __future__ import annotations

from repro.traces.paths import Recorded
from runners.releases.backends.eager_metadata import eager_metadata
from runners.releases.live import Outputs
from runners.sessions.observe.observer import Call, Observer


class Metadata(Observer):
    """At the first launch, or behind the graph where it is made while that runs; and of an eager pass alone."""

    def launched(self, call: Call) -> None:
        if call.launches == 1 and not self._comes_after():
            self._see(call)

    def after(self, call: Call, outputs: Outputs) -> None:
        if call.alone:
            # The multi-layer worker has a pool for each of its model runners, none of them with sliding layers.
            first, pool = self.captured.planner.first, getattr(self.captured.model_runner, "token_to_kv_pool", None)
            for name, tensor in eager_metadata(self.captured.setup, first, pool).items():
                call.staging.see(Recorded.METADATA, name, tensor)
        elif call.launches and self._comes_after():
            self._see(call)

    def _comes_after(self) -> bool:
        return self.captured.adapter.family.metadata_after(self.captured.setup)

    def _see(self, call: Call) -> None:
        live, runner, family = self.captured.live, self.captured.runner, self.captured.adapter.family
        for name, tensor in family.metadata(live, runner, family.sizes(runner)[0], call.given).items():
            call.staging.see(Recorded.METADATA, name, tensor)
