"""sglang 0.5.11: pools and backend on the batch, and graphs that translate KV slots to those of a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.draft_extend.v0_5_10 import accepted
from runners.releases.draft_extend.v0_5_11 import batch as one_layer_batch
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.multi_layer import family, growing
from runners.releases.multi_layer.family import neutral
from runners.releases.multi_layer.growing import FAMILY
from runners.releases.multi_layer.v0_5_13 import batch_by, graph
from runners.releases.multi_layer.v0_5_13 import build as built
from runners.releases.multi_layer.v0_5_13 import capture as captured

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.11"


def build(setup: Setup, device: str, models: Folders) -> Live:
    live = built(setup, device, models)
    live.draft.draft_runner = live.draft.draft_runner_list[0]  # as of 0.5.12 by itself
    return live


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
