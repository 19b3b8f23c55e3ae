"""sglang 0.5.12: other names of the accepted counts."""

from __future__ import annotations

from typing import Any

from runners.releases.draft_extend.v0_5_12 import batch as one_layer_batch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.multi_layer.growing import FAMILY
from runners.releases.multi_layer.v0_5_11 import build, capture, eager_by, graph, neutral
from runners.releases.multi_layer.v0_5_13 import batch_by

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.12"


def batch(live: Live, rows: Rows) -> Any:
    return batch_by(one_layer_batch, live, rows)


def eager(live: Live, forward_batch: Any) -> Outputs:
    return eager_by(one_layer_batch, live, forward_batch)
