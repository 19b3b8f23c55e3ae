"""sglang 0.5.11 and 0.5.12: other workers."""

from __future__ import annotations

from runners.releases.verify.v0_5_10 import batch, capture, eager, graph, neutral, prepare
from runners.releases.workers.v0_5_11 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]
