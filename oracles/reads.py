"""Which positions of its request's row of req_to_token each attention call reads, per runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from repro.cases.case import Request, Setup
from repro.cases.layout import WINDOW, Ints, draft_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """calls: attention calls whose metadata is recorded, the rows of kv_indptr and kv_indices. positions: what one
    call reads for a request, [sequences of the request, length]. queries: query tokens of a sequence, where qo_indptr
    says so; None where each has one."""

    calls: Callable[[Setup], int]
    positions: Callable[[Setup, Request, int], Ints]
    queries: Callable[[Setup], int] | None = None


def _drafts(setup: Setup, request: Request, call: int) -> Ints:
    """Every branch: the prefix, then its own drafts up to this draft step."""
    prefix = np.broadcast_to(np.arange(request.seq_len), (setup.topk, request.seq_len))
    return np.concatenate([prefix, draft_positions(setup, request.seq_len)[:, : call + 1]], axis=1)


def _tokens(setup: Setup, request: Request, call: int) -> Ints:
    """All tokens of the request, the one that is decoded included."""
    return np.arange(request.seq_len, dtype=np.int64)[None, :]


def _verified(setup: Setup, request: Request, call: int) -> Ints:
    """The prefix; the tokens of the tree are no part of kv_indices, except for flashinfer."""
    tree = setup.num_draft_tokens if setup.backend == "flashinfer" else 0
    return np.arange(request.seq_len + tree, dtype=np.int64)[None, :]


def _prefixes(setup: Setup, request: Request, call: int) -> Ints:
    """Every branch: the prefix alone, in all draft steps."""
    return np.broadcast_to(np.arange(request.seq_len), (setup.topk, request.seq_len))


def _windows(setup: Setup, request: Request, call: int) -> Ints:
    """Every branch: the last tokens of the prefix."""
    last = np.arange(max(0, request.seq_len - WINDOW), request.seq_len)
    return np.broadcast_to(last, (setup.topk, last.size))


def _before_tree(setup: Setup, request: Request, call: int) -> Ints:
    """What lies before the tokens of the tree that was verified. A padded row is nothing but such tokens. flashinfer
    is given them as well, and of a padded row its whole length."""
    count = request.seq_len if request.slot else 0
    if setup.backend == "flashinfer":
        count = request.seq_len + (setup.num_draft_tokens if request.slot else 0)
    return np.arange(count, dtype=np.int64)[None, :]


READS = {
    "draft": Reads(calls=lambda setup: setup.num_steps - 1, positions=_drafts),
    "draft_v1": Reads(calls=lambda setup: setup.num_steps - 1, positions=_drafts),
    "decode": Reads(calls=lambda setup: 1, positions=_tokens),
    "verify": Reads(calls=lambda setup: 1, positions=_verified, queries=lambda setup: setup.num_draft_tokens),
    "frozen_kv_mtp": Reads(calls=lambda setup: 1, positions=_prefixes),
    # Of the first layer: later ones have no metadata yet at the first launch.
    "multi_layer": Reads(calls=lambda setup: 1, positions=_before_tree, queries=lambda setup: setup.num_draft_tokens),
    "draft_extend": Reads(calls=lambda setup: 1, positions=_before_tree, queries=lambda setup: setup.num_draft_tokens),
    "toy": Reads(calls=lambda setup: setup.num_steps - 1, positions=_drafts),
}

# The same of models that have sliding layers besides: what those read, of window_kv_indptr and window_kv_indices.
WINDOWS = {
    "frozen_kv_mtp": Reads(calls=lambda setup: 1, positions=_windows),
}


def reads_of(runner: str) -> dict[str, Reads]:
    """By what the names of their metadata begin with."""
    return {prefix: table[runner] for prefix, table in (("", READS), ("window_", WINDOWS)) if runner in table}
