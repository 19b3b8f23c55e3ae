"""sglang 0.5.13: pools and backend leave ForwardBatch, and the first drafts are made in the graph."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.draft.v0_5_10 import graph
from runners.releases.frozen_kv_mtp.every import batch_fields, capture, eager, neutral
from runners.releases.frozen_kv_mtp.v0_5_12 import build
from runners.releases.live import Live, Rows

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**batch_fields(live, rows))
