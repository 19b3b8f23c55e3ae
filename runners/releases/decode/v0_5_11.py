"""sglang 0.5.11 and 0.5.12: other workers."""

from __future__ import annotations

from runners.releases.decode.v0_5_10 import batch, capture, eager, graph, neutral
from runners.releases.workers.v0_5_11 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

build = build_target
