"""runners.sessions.open for draft-extend, able to change one input of a request and nothing else: data with
(n << SHIFT) added changes PARTS[n - 1]. Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import numpy as np

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from tests.altered_session import OTHER_SLOT, SHIFT, Rows, open_altered

__all__ = ["OTHER_SLOT", "PARTS", "SHIFT", "open_session"]

# What becomes of a request's row; at a slot that no other request uses. The graph is not told extend_prefix_lens, and
# no kernel of these backends reads num_correct_drafts.
_ROWS: Rows = {
    "input_ids": lambda row, _: row ^ 1,
    "hidden_states": lambda row, _: row[::-1],
    "positions": lambda row, _: row + 3,
    "seq_lens": lambda row, _: row + 1,
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    "out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size],
    "num_accept_tokens": lambda row, _: row % 3 + 1,
}
PARTS = (*_ROWS, "prefix0", "prefix1")


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    return open_altered("draft_extend", _ROWS, PARTS, setup, target, watch)
