"""sglang 0.5.16: workers of newer generations."""

from __future__ import annotations

from runners.releases.draft_extend.v0_5_10 import neutral
from runners.releases.draft_extend.v0_5_13 import eager
from runners.releases.draft_extend.v0_5_14 import batch, capture, graph
from runners.releases.workers.present import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.16"
