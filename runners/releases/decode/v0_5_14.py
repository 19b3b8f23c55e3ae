"""sglang 0.5.14 and 0.5.15: DecodeCudaGraphRunner, with can_run_graph/execute."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

from runners.releases.decode.batches import batch, eager, logits, neutral
from runners.releases.decode.family import FAMILY
from runners.releases.live import Live, Outputs
from runners.releases.workers.v0_5_14 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

build = build_target


def capture(live: Live) -> Any:
    return DecodeCudaGraphRunner(FAMILY.model_runner(live))


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return logits(runner.execute(forward_batch))
