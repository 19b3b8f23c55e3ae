"""sglang 0.5.14: can_run_graph/execute."""

from __future__ import annotations

from typing import Any

import torch

from repro.case import Setup
from runners.releases.cpu_decode.compiling import built, capture, neutral
from runners.releases.decode.batches import batch, eager, logits
from runners.releases.live import Live, Outputs
from runners.releases.model import Folders
from runners.releases.workers.v0_5_14 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def build(setup: Setup, device: str, models: Folders) -> Live:
    return built(build_target, setup, device, models)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    with torch.no_grad():
        return logits(runner.execute(forward_batch))
