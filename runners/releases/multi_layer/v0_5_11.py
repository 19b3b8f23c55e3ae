"""sglang 0.5.11: pools and backend on the batch, and graphs that translate KV slots to those of a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker

from repro.case import Setup
from runners.releases.draft_extend.v0_5_10 import accepted
from runners.releases.draft_extend.v0_5_11 import batch as one_layer_batch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.multi_layer import family, growing
from runners.releases.multi_layer.family import ARGUMENTS, neutral
from runners.releases.multi_layer.growing import FAMILY
from runners.releases.multi_layer.v0_5_13 import batch_by, graph
from runners.releases.multi_layer.v0_5_13 import capture as captured
from runners.releases.workers.v0_5_10 import construct, ranks, server_args

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.11"


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = server_args(setup, device, models) | {"max_running_requests": setup.slots}
    args = ServerArgs(**arguments, **ARGUMENTS)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(MultiLayerEagleDraftWorker, args, **ranks(), target_worker=target)
    args.disable_cuda_graph = False
    draft.init_attention_backend()  # once more, now that it may know that graphs are on
    draft.draft_runner = draft.draft_runner_list[0]  # as of 0.5.12 by itself
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)


def capture(live: Live) -> Any:
    """The graphs translate slots without asking whether the pool has a sliding window. Ours has none: each is its
    own."""
    for runner in family.runners(live):
        runner.token_to_kv_pool.translate_loc_from_full_to_swa = _own
    return captured(live)


def _own(slots: torch.Tensor) -> torch.Tensor:
    return slots


def batch(live: Live, rows: Rows) -> Any:
    return batch_by(one_layer_batch, live, rows)


def eager_by(one_layer: Callable[[Live, Rows], Any], live: Live, forward_batch: Any) -> Outputs:
    def run(runner: Any, rows: Rows) -> torch.Tensor:
        made = one_layer(live, rows)
        made.return_hidden_states_before_norm = True
        made.token_to_kv_pool, made.attn_backend = runner.token_to_kv_pool, runner.attn_backend
        runner.attn_backend.init_forward_metadata(made)
        logits: torch.Tensor = runner.forward(made, skip_attn_backend_init=True).logits_output.next_token_logits
        return logits

    return growing.eager(live, growing.first_window(forward_batch, accepted(forward_batch)), run)


def eager(live: Live, forward_batch: Any) -> Outputs:
    return eager_by(one_layer_batch, live, forward_batch)
