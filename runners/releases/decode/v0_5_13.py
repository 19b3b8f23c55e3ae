"""sglang 0.5.13: pools and backend leave ForwardBatch, the runner's buffers are kept in a registry."""

from __future__ import annotations

from runners.releases.decode.batches import batch, eager, neutral
from runners.releases.decode.v0_5_10 import capture, graph
from runners.releases.workers.v0_5_11 import build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"
build = build_target
