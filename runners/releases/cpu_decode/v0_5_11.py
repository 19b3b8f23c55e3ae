"""sglang 0.5.11 and 0.5.12: other workers."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.releases.cpu_decode.compiling import built, capture, graph, neutral
from runners.releases.decode.batches import batch_with_pools, eager
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.v0_5_11 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

batch = batch_with_pools


def build(setup: Setup, device: str, models: Folders) -> Live:
    return built(build_target, setup, device, models)
