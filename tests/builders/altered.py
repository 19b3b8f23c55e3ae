"""Inputs of a request that tests/builders/altered_session.py changes one at a time; read without torch.

Data with (n << SHIFT) added changes PARTS[runner][n - 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any
# What becomes of a request's row, by the input's name; the second argument is req_to_token.
Rows = Mapping[str, Callable[[Array, Array], Array]]
OTHER_SLOT = 6  # one that no other request uses
SHIFT = 24

_MOVED: Rows = {
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    "seq_lens": lambda row, _: row + 1,
}
_WRITTEN: Rows = {"out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size].reshape(row.shape)}
_DRAFTED: Rows = {
    "hidden_states": lambda row, _: row[::-1],
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
}
# sglang lays a draft's kv_indices out by seq_lens and cuts them by positions, so the cut must stay inside.
_DRAFT: Rows = {**_DRAFTED, "positions": lambda row, _: row - 1, **_MOVED, **_WRITTEN}
_DECODE: Rows = {**_MOVED, **_WRITTEN, "input_ids": lambda row, _: row ^ 1, "positions": lambda row, _: row + 3}
_VERIFY: Rows = {**_MOVED, **_WRITTEN, "bonus_tokens": lambda row, _: row ^ 1, **_DRAFTED}
# The graph is not told extend_prefix_lens, and no kernel of these backends reads num_correct_drafts.
_EXTEND: Rows = {
    **_DECODE,
    "hidden_states": lambda row, _: row[::-1],
    "num_accept_tokens": lambda row, _: row % 3 + 1,
}
_FROZEN: Rows = {
    **_DRAFTED,
    **_MOVED,
    "bonus_tokens": lambda row, _: row ^ 1,
    "positions": lambda row, _: row - 1,
}
ROWS = {
    "draft": _DRAFT,
    "draft_v1": _DRAFT,
    "decode": _DECODE,
    "cpu_decode": _DECODE,
    "verify": _VERIFY,
    "draft_extend": _EXTEND,
    "frozen_kv_mtp": _FROZEN,
}
PREFIXES = {"frozen_kv_mtp": 4}  # tensors of a KV cache: keys and values of each layer
PARTS = {
    runner: (*rows, *(f"prefix{number}" for number in range(PREFIXES.get(runner, 2)))) for runner, rows in ROWS.items()
}
