"""sglang 0.5.13: pools and backend leave ForwardBatch."""

from __future__ import annotations

from runners.releases.cpu_decode.v0_5_11 import build, capture, eager, graph, neutral
from runners.releases.decode.batches import batch

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"
