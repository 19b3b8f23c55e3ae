"""sglang 0.5.14 and 0.5.15: can_run_graph/execute, on a runner that derives from the target's."""

from __future__ import annotations

from typing import Any

from runners.releases.draft.v0_5_10 import capture, drafts, neutral
from runners.releases.draft.v0_5_13 import batch, eager
from runners.releases.live import Outputs
from runners.releases.workers.v0_5_14 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return drafts(runner.execute(forward_batch))
