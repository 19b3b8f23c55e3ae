"""sglang 0.5.15: other workers."""

from __future__ import annotations

from runners.releases.decode.batches import batch, eager, neutral
from runners.releases.decode.v0_5_14 import capture, graph
from runners.releases.workers.v0_5_15 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

build = build_target
