"""sglang 0.5.14 and 0.5.15: the first workers are gone. Their verify's functions are still defined, though nothing
calls them any more; they are driven all the same. The moves of EAGLE v2 are functions of their own."""

from __future__ import annotations

import torch
from sglang.srt.speculative import base_spec_worker, spec_utils

from repro.cases.case import Setup
from runners.releases.kv_move.family import Batch, Move, Pools, branches_by
from runners.releases.kv_move.v0_5_10 import on_pages, verifies
from runners.releases.kv_move.v0_5_11 import pools

__all__ = ["NAME", "moves", "pools"]

NAME = "0.5.14"


def accept(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
    spec_utils.move_accept_tokens_to_target_kvcache(
        batch.schedule_batch(pools), batch.accept_index, batch.num_correct_drafts, pools.allocator
    )
    return {}


def moves(setup: Setup) -> dict[str, Move]:
    branches = branches_by(base_spec_worker.duplicate_prefix_tail_to_draft_branches)
    return {**verifies(spec_utils.create_num_accept_tokens_filter), "accept": accept, **on_pages(setup, branches)}
