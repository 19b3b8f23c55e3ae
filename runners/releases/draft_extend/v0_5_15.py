"""sglang 0.5.15: one buffer of logits for all graphs."""

from __future__ import annotations

from runners.releases.draft_extend.v0_5_10 import neutral
from runners.releases.draft_extend.v0_5_13 import eager
from runners.releases.draft_extend.v0_5_14 import batch, capture, graph
from runners.releases.workers.v0_5_15 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]
