"""sglang 0.5.15: other workers."""

from __future__ import annotations

from runners.releases.verify.v0_5_14 import batch, capture, eager, graph, neutral, prepare
from runners.releases.workers.v0_5_15 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]
