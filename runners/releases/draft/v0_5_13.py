"""sglang 0.5.13: pools and backend leave ForwardBatch, and a batch says whether its attention metadata is ready."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.draft.family import backend
from runners.releases.draft.v0_5_10 import batch_fields, capture, drafts, graph, neutral
from runners.releases.live import Live, Outputs, Rows
from runners.releases.workers.v0_5_11 import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**batch_fields(live, rows))


def eager(live: Live, forward_batch: Any) -> Outputs:
    backend(live).init_forward_metadata(forward_batch)
    forward_batch.mark_forward_metadata_ready()
    return drafts(live.draft.draft_forward(forward_batch))
