"""runners.sessions.open for frozen-KV drafts, able to change one input of a request and nothing else: data with
(n << SHIFT) added changes PARTS[n - 1]."""

from __future__ import annotations

import numpy as np

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from tests.altered_session import OTHER_SLOT, SHIFT, Rows, open_altered

__all__ = ["OTHER_SLOT", "PARTS", "SHIFT", "open_session"]

_ROWS: Rows = {
    "bonus_tokens": lambda row, _: row ^ 1,
    "hidden_states": lambda row, _: row[::-1],
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
    "positions": lambda row, _: row - 1,
    "seq_lens": lambda row, _: row + 1,
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
}
PARTS = (*_ROWS, *(f"prefix{number}" for number in range(4)))


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    return open_altered("frozen_kv_mtp", _ROWS, PARTS, setup, target, watch)
