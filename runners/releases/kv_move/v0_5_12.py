"""sglang 0.5.12: the filter of finished requests has yet another name."""

from __future__ import annotations

from sglang.srt.speculative import spec_utils

from repro.cases.case import Setup
from runners.releases.kv_move.family import Move
from runners.releases.kv_move.v0_5_10 import branches, on_pages, verifies
from runners.releases.kv_move.v0_5_11 import pools

__all__ = ["NAME", "moves", "pools"]

NAME = "0.5.12"


def moves(setup: Setup) -> dict[str, Move]:
    return {**verifies(spec_utils.create_num_accept_tokens_filter), **on_pages(setup, branches)}
