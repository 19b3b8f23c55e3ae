"""sglang 0.5.14: construction in phases, and can_run_graph/execute."""

from __future__ import annotations

from typing import Any

from runners.releases.draft_extend.v0_5_14 import batch as one_layer_batch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.multi_layer.family import neutral
from runners.releases.multi_layer.growing import FAMILY
from runners.releases.multi_layer.phased import build
from runners.releases.multi_layer.v0_5_13 import batch_by, capture, drawn_by, eager_by

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.14"


def batch(live: Live, rows: Rows) -> Any:
    return batch_by(one_layer_batch, live, rows)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return drawn_by(runner, "execute", forward_batch)


def eager(live: Live, forward_batch: Any) -> Outputs:
    return eager_by(one_layer_batch, live, forward_batch)
