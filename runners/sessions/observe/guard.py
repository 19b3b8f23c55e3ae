"""The guard bands around buffers, as they are behind the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.traces.paths import Recorded
from runners.engines.guards import untouched
from runners.engines.staging import HostArrays, StagingBuffer
from runners.releases.live import Outputs
from runners.sessions.observe.observer import Call, Observer


class GuardBands(Observer):
    """Asked for; see_bands() records them, once they have come."""

    def after(self, call: Call, outputs: Outputs) -> None:
        if call.path is Recorded.GRAPH:
            for number, bands in enumerate(self.captured.bands):
                call.staging.see(Recorded.GUARD, str(number), bands.read(), tell=False)


def see_bands(staging: StagingBuffer, every: Sequence[Any], came: HostArrays) -> None:
    """Record the guard bands that were broken, and how much was intact."""
    intact = 0
    for number, bands in enumerate(every):
        read = came[Recorded.GUARD, str(number)]
        broken = bands.broken(read)
        intact += 0 if broken else read.size
        for name, contents in broken.items():
            staging.see(Recorded.GUARD, name, contents)
            staging.see(Recorded.GUARD, f"{name}.want", untouched(contents.size))
        if broken:
            bands.mend()
    staging.see(Recorded.GUARD, "intact", intact)
