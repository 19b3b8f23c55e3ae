"""sglang 0.5.14: another name for the model runner's graph runner."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases.cpu_decode.compiling import built, capture, neutral, through_model_runner
from runners.releases.decode.batches import batch, eager
from runners.releases.live import Live, Outputs
from runners.releases.model import Folders
from runners.releases.workers.v0_5_14 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def build(setup: Setup, device: str, models: Folders) -> Live:
    return built(build_target, setup, device, models)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    return through_model_runner("decode_cuda_graph_runner", runner, forward_batch)
