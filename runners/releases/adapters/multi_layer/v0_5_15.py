"""sglang 0.5.15: the layers share one set of buffers, and all go over the same tokens."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.multi_layer_eagle_utils import rotate_input_ids_triton

from runners.releases.adapters.multi_layer import same_tokens
from runners.releases.live import Outputs

batch, eager = same_tokens.batch, same_tokens.eager


def graph(runner: Any, forward_batch: Any) -> Outputs:
    return same_tokens.graph_by(rotate_input_ids_triton, runner, forward_batch)
