"""sglang 0.5.13: layer after layer over one token more, in buffers that each graph fills for the next."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner import (
    MultiLayerEagleMultiStepDraftExtendCudaGraphRunner,
)
from sglang.srt.speculative.multi_layer_eagle_utils import assign_hidden_states_pool_triton
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker

from repro.cases.case import Setup
from runners.releases.draft_extend.v0_5_10 import accepted
from runners.releases.draft_extend.v0_5_13 import batch as one_layer_batch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.multi_layer import growing
from runners.releases.multi_layer.drawn import Drawn
from runners.releases.multi_layer.family import ARGUMENTS, neutral
from runners.releases.multi_layer.growing import FAMILY
from runners.releases.workers.v0_5_10 import one_phase, server_args

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return one_phase(setup, device, arguments | ARGUMENTS, MultiLayerEagleDraftWorker)


def capture(live: Live) -> Any:
    return MultiLayerEagleMultiStepDraftExtendCudaGraphRunner(live.draft)


def batch_by(one_layer: Callable[[Live, Rows], Any], live: Live, rows: Rows) -> Any:
    growing.put_pool(live, rows)
    made = one_layer(live, rows)
    made.return_hidden_states_before_norm = True
    return made


def batch(live: Live, rows: Rows) -> Any:
    return batch_by(one_layer_batch, live, rows)


def drawn_by(runner: Any, replay: str, forward_batch: Any) -> Outputs:
    """As the worker does it. replay: what a layer's replay is called."""
    counts = accepted(forward_batch)
    runner.reset_buffers(forward_batch, SimpleNamespace(accept_lens=counts))
    drawn = Drawn()
    for layer in range(runner.speculative_num_steps):
        returned = getattr(runner.get_runner(layer), replay)(forward_batch, init_state=layer == 0)
        drawn.add(returned.next_token_logits, returned.topk_p, returned.topk_index)
    last = runner.get_last_runner().buffers
    pool = runner.eagle_worker.req_to_hidden_states_pool
    assign_hidden_states_pool_triton(
        last.hidden_states,
        last.req_pool_indices,
        pool,
        runner.speculative_num_steps - 1,
        forward_batch.batch_size,
        last.extend_seq_lens,
        last.extend_start_loc,
    )
    return {**drawn.outputs(), "hidden_pool": growing.pool_rows(pool, forward_batch.req_pool_indices).flatten(1)}


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return drawn_by(runner, "replay", forward_batch)


def eager_by(one_layer: Callable[[Live, Rows], Any], live: Live, forward_batch: Any) -> Outputs:
    def run(runner: Any, rows: Rows) -> torch.Tensor:
        made = one_layer(live, rows)
        made.return_hidden_states_before_norm = True
        runner.attn_backend.init_forward_metadata(made)
        made.mark_forward_metadata_ready()
        logits: torch.Tensor = runner.forward(made).logits_output.next_token_logits
        return logits

    return growing.eager(live, growing.first_window(forward_batch, accepted(forward_batch)), run)


def eager(live: Live, forward_batch: Any) -> Outputs:
    return eager_by(one_layer_batch, live, forward_batch)
