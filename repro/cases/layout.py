"""The places of tokens in the KV cache: req_to_token and the row positions of draft tokens, as plain arrays.

Every request slot owns one row of req_to_token, for as long as the layout stays; its pages are scattered over the pool,
so that neighbouring tokens of a request are not neighbours in memory and a wrong index meets foreign data.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from repro.cases.payload import shuffled

Ints = npt.NDArray[np.int64]

# Tokens of a prefix that a sliding layer reads, of models that have such layers.
WINDOW = 7
TRACKED_MIN = 4  # the fewest tokens between two states that are kept
_LAYOUT_DATA = 23037  # any constant: the layout is part of the meaning of a seed file


class Paged(Protocol):
    """The parts of a Setup that decide the layout."""

    @property
    def topk(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def adaptive(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def overhang(self) -> int: ...


def row_tokens(setup: Paged) -> int:
    """Positions of one request's row."""
    return setup.context_len + setup.overhang


def row_pages(setup: Paged) -> int:
    """Pages in one request's row."""
    return -(-row_tokens(setup) // setup.page_size)


def pool_tokens(setup: Paged) -> int:
    """KV slots that requests can own. The pool has page_size more: slots 0..page_size-1 are reserved."""
    return setup.slots * row_pages(setup) * setup.page_size


def req_to_token(setup: Paged, layout: int = 0) -> Ints:
    """The KV slot of each token, by one of many layouts of the same slots: [slots + 1, row_tokens]. Row 0 is the
    padding row, all zero."""
    pages = row_pages(setup)
    order = shuffled(_LAYOUT_DATA + layout, "pages", setup.slots * pages).reshape(setup.slots, pages)
    tokens = (order[:, :, None] + 1) * setup.page_size + np.arange(setup.page_size)
    table = np.zeros((setup.slots + 1, row_tokens(setup)), dtype=np.int64)
    table[1:] = tokens.reshape(setup.slots, -1)[:, : row_tokens(setup)]
    return table


def state_rows(setup: Paged) -> int:
    """State slots of recurrent layers that requests can own, besides slot 0: as many again as there are requests."""
    return 2 * setup.slots


def state_slots(setup: Paged, layout: int = 0) -> Ints:
    """The state slot of each request slot, by one of many layouts, [slots + 1]; of row 0, the padding row, 0."""
    return _state_slots(setup, layout, 0)


def tracked_slots(setup: Paged, layout: int = 0) -> Ints:
    """The same of the slot that keeps a request's state as it was where a prefix may be used again."""
    return _state_slots(setup, layout, 1)


def _state_slots(setup: Paged, layout: int, number: int) -> Ints:
    order = shuffled(_LAYOUT_DATA + layout, "states", state_rows(setup)).reshape(2, setup.slots)
    return np.concatenate([[0], order[number] + 1])


def track_interval(setup: Paged) -> int:
    """Tokens between two states that are kept: whole pages, and as many as are verified at once, as servers insist. A
    server's own are hundreds, beyond most prefixes here."""
    most = max(setup.num_draft_tokens, setup.num_steps + 1, TRACKED_MIN)
    return -(-most // setup.page_size) * setup.page_size


def is_kept(setup: Paged, length: int) -> bool:
    """True if a state of a request is kept that has come to this length, its new token included, by decoding."""
    return length % track_interval(setup) == 0


def branch_stride(setup: Paged, seq_len: int) -> int:
    """Row positions from the start of one branch of drafts to that of the next.

    With one-token pages or a single branch, the branches follow each other behind the prefix. Otherwise
    each branch starts on pages of its own, at the offset at which the prefix ended in its last page
    (sglang's generate_draft_decode_kv_indices).
    """
    if setup.page_size == 1 or setup.topk == 1:
        return setup.num_steps
    return -(-(seq_len % setup.page_size + setup.num_steps) // setup.page_size) * setup.page_size


def draft_positions(setup: Paged, seq_len: int) -> Ints:
    """Row positions of the draft tokens of a request: [topk, num_steps]."""
    branch = np.arange(setup.topk, dtype=np.int64)[:, None]
    step = np.arange(setup.num_steps, dtype=np.int64)[None, :]
    return np.asarray(seq_len + branch * branch_stride(setup, seq_len) + step)


def page_copies(setup: Paged, seq_len: int) -> tuple[Ints, Ints]:
    """Row positions of the tokens on a prefix's last, partial page, and of each branch's copy of them on the page where
    its drafts begin: two of [topk, tokens on that page]. The worker fills the copies before a draft, for backends that
    read whole pages."""
    count = seq_len % setup.page_size if setup.topk > 1 else 0
    copies = draft_positions(setup, seq_len)[:, :1] - np.arange(count, 0, -1)
    return np.broadcast_to(np.arange(seq_len - count, seq_len), copies.shape), copies
