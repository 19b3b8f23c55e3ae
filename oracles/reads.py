"""Which positions of its request's row of req_to_token each attention call reads, per runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from repro.case import Request, Setup
from repro.layout import Ints, draft_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """calls: attention calls whose metadata is recorded, the rows of kv_indptr and kv_indices. positions: what one
    call reads for a request, [sequences of the request, length]."""

    calls: Callable[[Setup], int]
    positions: Callable[[Setup, Request, int], Ints]


def _drafts(setup: Setup, request: Request, call: int) -> Ints:
    """Every branch: the prefix, then its own drafts up to this draft step."""
    prefix = np.broadcast_to(np.arange(request.seq_len), (setup.topk, request.seq_len))
    return np.concatenate([prefix, draft_positions(setup, request.seq_len)[:, : call + 1]], axis=1)


READS = {
    "draft": Reads(calls=lambda setup: setup.num_steps - 1, positions=_drafts),
    "toy": Reads(calls=lambda setup: setup.num_steps - 1, positions=_drafts),
}
