"""Since 0.5.15 the layers share one set of buffers, and all go over the same tokens: the batch and both paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runners.releases.adapters.draft_extend.adapter import accepted
from runners.releases.adapters.multi_layer.adapter import batch_of
from runners.releases.adapters.multi_layer.drawn import Drawn
from runners.releases.adapters.multi_layer.family import runners
from runners.releases.forward_pass import accept, plan
from runners.releases.live import Live, Outputs, Rows


def batch(live: Live, rows: Rows) -> Any:
    return batch_of(runners(live)[0], rows)


def graph_by(rotate: Callable[..., Any], runner: Any, forward_batch: Any) -> Outputs:
    """Run the graphs as the worker does. rotate: sglang's function that moves every request's tokens up by one and puts
    the drawn one behind them."""
    accept(runner, forward_batch)
    runner.prepare(forward_batch)
    drawn, buffers, real = Drawn(), runner.buffers, slice(runner.raw_bs)
    for layer in range(runner.speculative_num_steps):
        returned, topk_p, topk_index = runner.replay(layer)
        drawn.add(returned.next_token_logits, topk_p, topk_index)
        if layer < runner.speculative_num_steps - 1:
            rotate(
                buffers.input_ids[: runner.raw_num_tokens],
                buffers.extend_start_loc[real],
                buffers.extend_seq_lens[real],
                topk_index,
                buffers.select_index[real],
            )
    return drawn.outputs()


def eager(live: Live, forward_batch: Any) -> Outputs:
    """Logits of all tokens.

    As the worker's own path without a graph, but that every layer's attention metadata is made before it runs, as
    the graphs do; the worker makes the first layer's only, and says itself that the result may be wrong."""
    forward_batch.input_ids = forward_batch.input_ids.clone()
    counts, width = accepted(forward_batch).to(torch.int64), live.setup.num_draft_tokens
    last = torch.arange(len(counts), device=counts.device) * width + counts - 1
    drawn = Drawn()
    for runner in runners(live):
        plan(runner.attn_backend, forward_batch)
        best = drawn.add_best(runner.forward(forward_batch).logits_output.next_token_logits, last)
        _draw(forward_batch.input_ids, width, last, best)
    return drawn.outputs()


def _draw(input_ids: torch.Tensor, width: int, last: torch.Tensor, drawn: torch.Tensor) -> None:
    """Every request's tokens move up by one, and what was drawn takes the place of the last accepted one."""
    rows = input_ids.view(-1, width)
    rows[:, :-1] = rows[:, 1:].clone()
    input_ids[last] = drawn.squeeze(-1)
