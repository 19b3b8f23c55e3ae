"""The graphs that a server captures, and the one of the runner's that is launched."""

from __future__ import annotations

from typing import Any

from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.sessions.observe.observer import Call, Observer

GREEDY = "greedy"


class Bucket(Observer):
    def once(self, staging: StagingBuffer) -> None:
        for (size, at_once), sizes in self.captured.buckets.items():
            staging.see(Recorded.BUCKETS, f"{size}, {at_once} at once", sizes)

    def launched(self, call: Call) -> None:
        for name, value in captured_for(self.captured.runner, self.captured.launched).items():
            call.staging.see(Recorded.LAUNCHED, name, value)


def captured_for(runner: Any, graph: object) -> dict[str, int]:
    """The batches that a graph of this runner was captured for: `size` of them, by the key that the runner keeps it
    under, and as `greedy` 1 if for those of greedy requests alone, where the runner has graphs of their own for these.
    Nothing of a graph that is not found."""
    if getattr(runner, "rotates_in_graph", False):
        runner = runner.runners[0]  # a draft's first layer keeps the graphs of all
    graphs = getattr(runner, "graphs", None) or getattr(getattr(runner, "backend", None), "_graphs", {})
    key = next((key for key, each in graphs.items() if each is graph), None)
    size = getattr(key, "size", key)
    batches = {"size": size} if isinstance(size, int) else {}
    if any(getattr(other, "variant_label", None) == GREEDY for other in graphs):
        batches["greedy"] = int(getattr(key, "variant_label", None) == GREEDY)
    return batches
