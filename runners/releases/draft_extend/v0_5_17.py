"""sglang 0.5.17: the runner no longer knows topk itself."""

from __future__ import annotations

from typing import Any

from runners.releases.draft_extend.v0_5_10 import accepted, neutral, outputs
from runners.releases.draft_extend.v0_5_13 import eager
from runners.releases.draft_extend.v0_5_14 import batch, capture
from runners.releases.live import Outputs
from runners.releases.workers.present import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.17"


def graph(runner: Any, forward_batch: Any) -> Outputs:
    counts = accepted(forward_batch)
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return outputs(runner.execute(forward_batch), counts, runner.eagle_worker.topk)
