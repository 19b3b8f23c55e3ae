"""sglang 0.5.16: workers of newer generations."""

from __future__ import annotations

from runners.releases.verify.v0_5_14 import batch, capture, eager, graph, neutral, prepare
from runners.releases.workers.present import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]

NAME = "0.5.16"
