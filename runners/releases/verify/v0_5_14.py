"""sglang 0.5.14: DecodeCudaGraphRunner, with can_run_graph/execute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.decode.batches import neutral
from runners.releases.decode.v0_5_14 import capture
from runners.releases.draft import v0_5_14 as draft
from runners.releases.live import Live, Outputs, Rows
from runners.releases.verify.batches import drafted, eager, fields, outputs
from runners.releases.workers.v0_5_14 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]


def prepare(live: Live, rows: Rows) -> Mapping[str, torch.Tensor]:
    return drafted(live, rows, draft.batch, draft.eager)


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**fields(live, rows))


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return outputs(runner.execute(forward_batch))
