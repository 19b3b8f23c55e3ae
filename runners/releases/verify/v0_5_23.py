"""sglang 0.5.23: trees are built in a module of the kernels' package."""

from __future__ import annotations

from sglang.kernels.ops.speculative import spec_tree

from runners.releases.verify.batches import stand_in
from runners.releases.verify.v0_5_17 import FAMILY, batch, build, capture, eager, graph, neutral, prepare

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]

NAME = "0.5.23"
stand_in(spec_tree)
