"""sglang 0.5.10.post1: CudaGraphRunner, pools on the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.decode.batches import neutral
from runners.releases.decode.v0_5_10 import capture
from runners.releases.draft import v0_5_10 as draft
from runners.releases.live import Live, Outputs, Rows
from runners.releases.verify.batches import drafted, eager, fields, outputs
from runners.releases.verify.family import FAMILY
from runners.releases.workers.v0_5_10 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]


def prepare(live: Live, rows: Rows) -> Mapping[str, torch.Tensor]:
    return drafted(live, rows, draft.batch, draft.eager)


def batch(live: Live, rows: Rows) -> Any:
    runner = FAMILY.model_runner(live)
    return ForwardBatch(
        **fields(live, rows),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return outputs(runner.replay(forward_batch))
