"""sglang 0.5.16: kernels in a package of their own, the branches' function among the workers'."""

from __future__ import annotations

from sglang.kernels.ops.speculative import cache_locs
from sglang.srt.speculative import eagle_worker_common, spec_utils

from repro.cases.case import Setup
from runners.releases.kv_move import v0_5_11
from runners.releases.kv_move.family import Move, Pools, branches_by
from runners.releases.kv_move.v0_5_10 import on_pages, verifies
from runners.releases.kv_move.v0_5_14 import accept
from runners.releases.workers.phased import as_on_gpus

__all__ = ["NAME", "moves", "pools"]

NAME = "0.5.16"


def pools(setup: Setup, device: str) -> Pools:
    if device == "cpu":
        as_on_gpus()
    return v0_5_11.pools(setup, device)


def moves(setup: Setup) -> dict[str, Move]:
    branches = branches_by(eagle_worker_common.duplicate_prefix_tail_to_draft_branches)
    kept = verifies(spec_utils.create_num_accept_tokens_filter, cache_locs)
    return {**kept, "accept": accept, **on_pages(setup, branches)}
