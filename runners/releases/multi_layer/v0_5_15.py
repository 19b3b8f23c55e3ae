"""sglang 0.5.15: the layers share one set of buffers, and all go over the same tokens."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.multi_layer_eagle_utils import rotate_input_ids_triton

from runners.releases.live import Outputs
from runners.releases.multi_layer.family import FAMILY, neutral
from runners.releases.multi_layer.phased import build
from runners.releases.multi_layer.same_tokens import batch, capture, eager, graph_by

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.15"


def graph(runner: Any, forward_batch: Any) -> Outputs:
    return graph_by(rotate_input_ids_triton, runner, forward_batch)
