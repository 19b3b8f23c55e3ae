"""The batch as attention's backend gets it: what its metadata is made of, in the call's graph path and in its eager
one; and which backends there are, and what they go by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.sessions.extents import extents, ranks_on_host, widths
from runners.sessions.observe.observer import Call, Observer

_PATHS = {Recorded.GRAPH: Recorded.PLANNED, Recorded.EAGER: Recorded.PLANNED_EAGER}


class Planned(Observer):
    """Each call that plans, as it is at that moment. A runner of several graphs plans more than once."""

    def once(self, staging: StagingBuffer) -> None:
        for kind in self.captured.planner.kinds:
            staging.see(Recorded.BACKENDS, kind, 1)
        staging.see(Recorded.SWITCHES, "steps", self.captured.switches)

    def before(self, call: Call) -> None:
        if call.path in _PATHS:
            call.during.enter_context(self.captured.planner.listened(partial(_see, call.staging, _PATHS[call.path])))


def _see(
    staging: StagingBuffer, path: Recorded, call: int, batch: Mapping[str, object], arguments: Mapping[str, Any]
) -> None:
    """Record a plan: of an eager one also the width of integers, of a graph's all lengths and what the host says of
    ranks."""
    numbered = f".{call}" if call else ""
    for name, value in batch.items():
        staging.see(path + numbered, name, value)
    if path is Recorded.PLANNED_EAGER:
        staging.see_numbers(Recorded.WIDTHS + numbered, widths(arguments))
    else:
        staging.see_numbers(Recorded.EXTENTS + numbered, extents(arguments))
        for name, counts in ranks_on_host(arguments).items():
            staging.see(Recorded.GATHERED_ON_HOST, name, np.array(counts))
    staging.hold()
