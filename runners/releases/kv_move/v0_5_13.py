"""sglang 0.5.13: the workers of EAGLE v2 draft trees on pages, with moves of their own; the first workers' verify is
still there."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from sglang.srt.speculative import eagle_info_v2, spec_utils
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from repro.cases.case import Setup
from runners.releases.kv_move.family import Batch, Move, Pools, branches_by
from runners.releases.kv_move.v0_5_10 import on_pages, verifies
from runners.releases.kv_move.v0_5_11 import pools

__all__ = ["NAME", "moves", "pools"]

NAME = "0.5.13"


def accept(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
    """The accepted rows of a tree close up behind the prefix."""
    worker = SimpleNamespace(
        device=batch.seq_lens.device,
        speculative_num_draft_tokens=pools.setup.num_draft_tokens,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.allocator,
    )
    EAGLEWorkerV2.move_accept_tokens_to_target_kvcache(
        worker, batch.schedule_batch(pools), batch.accept_index, batch.num_correct_drafts
    )
    return {}


def moves(setup: Setup) -> dict[str, Move]:
    branches = branches_by(eagle_info_v2.duplicate_prefix_tail_to_draft_branches)
    return {**verifies(spec_utils.create_num_accept_tokens_filter), "accept": accept, **on_pages(setup, branches)}
