"""sglang 0.5.11 to 0.5.14: layer after layer over one token more, in buffers that each graph fills for the next."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.speculative.multi_layer_eagle_utils import assign_hidden_states_pool_triton

from runners.releases.adapters.draft_extend.adapter import accepted
from runners.releases.adapters.multi_layer import adapter, growing
from runners.releases.adapters.multi_layer.drawn import Drawn
from runners.releases.adapters.multi_layer.family import runners
from runners.releases.adapters.multi_layer.growing import FAMILY as GROWING
from runners.releases.forward_pass import accept, forward_planned, launch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.workers.posing import Posing

FAMILY = GROWING


def capture(live: Live) -> Any:
    """Up to 0.5.12 the graphs translate slots without asking whether the pool has a sliding window. This one does
    not: each slot is its own."""
    for runner in runners(live):
        if not hasattr(runner.token_to_kv_pool, "translate_loc_from_full_to_swa"):
            runner.token_to_kv_pool.translate_loc_from_full_to_swa = _own
    return adapter.capture(live)


def _own(slots: torch.Tensor) -> torch.Tensor:
    return slots


def batch(live: Live, rows: Rows) -> Any:
    growing.put_pool(live, rows)
    return adapter.batch_of(runners(live)[0], rows)


def graph(runner: Any, batch: Any) -> Outputs:
    """Run the graphs as the worker does."""
    accept(runner, batch)
    runner.reset_buffers(batch, Posing(accept_lens=accepted(batch)))
    drawn = Drawn()
    for layer in range(runner.speculative_num_steps):
        returned = launch(runner.get_runner(layer), batch, init_state=layer == 0)
        drawn.add(returned.next_token_logits, returned.topk_p, returned.topk_index)
    last = runner.get_last_runner().buffers
    pool = runner.eagle_worker.req_to_hidden_states_pool
    assign_hidden_states_pool_triton(
        last.hidden_states,
        last.req_pool_indices,
        pool,
        runner.speculative_num_steps - 1,
        batch.batch_size,
        last.extend_seq_lens,
        last.extend_start_loc,
    )
    return {**drawn.outputs(), "hidden_pool": growing.pool_rows(pool, batch.req_pool_indices).flatten(1)}


def eager(live: Live, batch: Any) -> Outputs:
    def run(runner: Any, rows: Rows) -> torch.Tensor:
        logits: torch.Tensor = forward_planned(runner, adapter.batch_of(runner, rows)).next_token_logits
        return logits

    return growing.eager(live, growing.first_window(batch, accepted(batch)), run)
