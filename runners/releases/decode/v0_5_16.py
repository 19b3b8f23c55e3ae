"""sglang 0.5.16: workers of newer generations."""

from __future__ import annotations

from runners.releases.decode.batches import batch, eager, neutral
from runners.releases.decode.v0_5_14 import capture, graph
from runners.releases.workers.present import build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.16"
build = build_target
