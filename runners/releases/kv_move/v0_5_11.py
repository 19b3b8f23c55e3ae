"""sglang 0.5.11: row 0 of the request pool is reserved, and the filter of finished requests has another name."""

from __future__ import annotations

from sglang.srt.speculative import spec_utils

from repro.cases.case import Setup
from runners.releases.kv_move import v0_5_10
from runners.releases.kv_move.family import Move, Pools
from runners.releases.kv_move.v0_5_10 import branches, on_pages, verifies

NAME = "0.5.11"


def pools(setup: Setup, device: str) -> Pools:
    return v0_5_10.pools(setup, device, extra_rows=0)


def moves(setup: Setup) -> dict[str, Move]:
    return {**verifies(spec_utils.create_num_accepted_drafts_filter), **on_pages(setup, branches)}
