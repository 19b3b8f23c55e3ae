"""sglang 0.5.10.post1: CudaGraphRunner, pools on the batch."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner

from runners.releases.decode.batches import batch_with_pools, eager, logits, neutral
from runners.releases.decode.family import FAMILY
from runners.releases.live import Live, Outputs
from runners.releases.workers.v0_5_10 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

build = build_target
batch = batch_with_pools


def capture(live: Live) -> Any:
    return CudaGraphRunner(FAMILY.model_runner(live))


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return logits(runner.replay(forward_batch))
