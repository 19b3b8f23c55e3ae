"""sglang 0.5.16: logits of each request's drawing row alone, another rotation, and one graph for all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.kernels.ops.speculative.multi_layer_eagle import rotate_input_ids

from runners.releases.adapters.draft_extend.adapter import accepted
from runners.releases.adapters.multi_layer import family, one_graph, same_tokens
from runners.releases.live import Live, Outputs
from runners.releases.reference.extending import drawing
from runners.releases.reference.layered import same_tokens as same_tokens_in_float64

batch = same_tokens.batch


FAMILY = replace(family.FAMILY, reference=one_graph.in_float64(drawing(same_tokens_in_float64)))


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if runner.rotates_in_graph:
        return one_graph.graph(runner, forward_batch)
    return same_tokens.graph_by(rotate_input_ids, runner, forward_batch)


def eager(live: Live, forward_batch: Any) -> Outputs:
    """Eager's outputs, of the logits those rows that the graphs give."""
    counts, width = accepted(forward_batch).to(torch.int64), live.setup.num_draft_tokens
    last = torch.arange(len(counts), device=counts.device) * width + counts - 1
    outputs = same_tokens.eager(live, forward_batch)
    if live.setup.one_graph:
        return one_graph.drawn(outputs)
    return {name: tensor[last] if name.startswith("next_token_logits") else tensor for name, tensor in outputs.items()}
