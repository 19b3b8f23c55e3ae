"""sglang 0.5.13: pools and backend leave ForwardBatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.draft import v0_5_13 as draft
from runners.releases.live import Live, Rows
from runners.releases.verify.batches import drafted, fields
from runners.releases.verify.v0_5_10 import capture, eager, graph, neutral
from runners.releases.workers.v0_5_11 import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]

NAME = "0.5.13"


def prepare(live: Live, rows: Rows) -> Mapping[str, torch.Tensor]:
    return drafted(live, rows, draft.batch, draft.eager)


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**fields(live, rows))
