"""sglang 0.5.23: the functions of the first workers' verify are gone."""

from __future__ import annotations

from sglang.srt.speculative import eagle_worker_common

from repro.cases.case import Setup
from runners.releases.kv_move.family import Move, branches_by
from runners.releases.kv_move.v0_5_10 import on_pages
from runners.releases.kv_move.v0_5_14 import accept
from runners.releases.kv_move.v0_5_16 import pools

__all__ = ["NAME", "moves", "pools"]

NAME = "0.5.23"


def moves(setup: Setup) -> dict[str, Move]:
    return {
        "accept": accept,
        **on_pages(setup, branches_by(eagle_worker_common.duplicate_prefix_tail_to_draft_branches)),
    }
