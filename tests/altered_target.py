"""runners.sessions.open for the target's runners, able to change one input of a request and nothing else: data with
(n << SHIFT) added changes PARTS[runner][n - 1]. Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import numpy as np

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from tests.altered_session import OTHER_SLOT, SHIFT, Rows, open_altered

__all__ = ["OTHER_SLOT", "PARTS", "SHIFT", "open_session"]

# What becomes of a request's row; at a slot that no other request uses.
_BOTH: Rows = {
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    # sglang lays a draft's kv_indices out by seq_lens and cuts them by positions, so the cut must stay inside.
    "seq_lens": lambda row, _: row + 1,
    "out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size].reshape(row.shape),
}
_DECODE: Rows = {**_BOTH, "input_ids": lambda row, _: row ^ 1, "positions": lambda row, _: row + 3}
_VERIFY: Rows = {
    **_BOTH,
    "bonus_tokens": lambda row, _: row ^ 1,
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
    "hidden_states": lambda row, _: row[::-1],
}
_ROWS = {"decode": _DECODE, "verify": _VERIFY}
PARTS = {runner: (*rows, "prefix0", "prefix1") for runner, rows in _ROWS.items()}


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    runner = setup.runner
    families = ("verify", "draft") if runner == "verify" else (runner,)
    return open_altered(families, _ROWS[runner], PARTS[runner], setup, target, watch)
