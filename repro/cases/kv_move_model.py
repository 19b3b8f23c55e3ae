"""The drafts that a verify step accepts of a request's tree, and the KV moves that follow, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints, draft_positions
from repro.cases.payload import shuffled

REJECTED = -1  # sglang's mark for the places of accept_index that nothing was accepted for


def verified(setup: Setup, table: Ints, request: Request) -> Ints:
    """The KV slots of the nodes of a request's tree, root first: [num_draft_tokens], right behind its prefix."""
    return table[request.slot, request.seq_len : request.seq_len + setup.num_draft_tokens]


def correct_drafts(setup: Setup, request: Request) -> int:
    """The number of accepted drafts without the root: no more than the tree has."""
    return min(request.accepted, setup.num_draft_tokens - 1)


def accepted_nodes(setup: Setup, request: Request) -> Ints:
    """The accepted nodes of the tree, rising: the root and, from the request's data, its correct drafts."""
    drafts = shuffled(request.data, "accepted", setup.num_draft_tokens - 1)[: correct_drafts(setup, request)]
    return np.concatenate([np.zeros(1, dtype=np.int64), np.sort(drafts) + 1])


def accept_index(setup: Setup, requests: Sequence[Request]) -> Ints:
    """The result of a verify step, [n, num_steps + 1]: nodes of the whole batch's trees, then REJECTED."""
    index = np.full((len(requests), setup.num_steps + 1), REJECTED, dtype=np.int64)
    for row, request in enumerate(requests):
        nodes = accepted_nodes(setup, request)
        index[row, : nodes.size] = row * setup.num_draft_tokens + nodes
    return index


def finishes(request: Request) -> bool:
    """True if the request ends with this step: moves may leave finished requests out."""
    return request.data % 2 == 1


def accepted_pairs(setup: Setup, table: Ints, request: Request) -> Ints:
    """Target and source KV slot of each accepted row of a request, [n, 2]. The targets follow the prefix without
    gaps."""
    slots, nodes = verified(setup, table, request), accepted_nodes(setup, request)
    return np.stack([slots[: nodes.size], slots[nodes]], axis=1)


def branch_pairs(setup: Setup, table: Ints, request: Request) -> Ints:
    """Target and source KV slot of each copy of a prefix's last, partly filled page, [n, 2]. Every branch but the
    first, which continues in that page, begins with a copy of it."""
    begun = request.seq_len % setup.page_size
    row = table[request.slot]
    source = row[request.seq_len - begun : request.seq_len]
    firsts = draft_positions(setup, request.seq_len)[1:, 0]
    pairs = [np.stack([row[first - begun : first], source], axis=1) for first in firsts]
    return np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64)


def freed(setup: Setup, table: Ints, request: Request) -> Ints:
    """The KV slots of a request's tree that are given back: the whole pages behind what is kept."""
    end = -(-(request.seq_len + correct_drafts(setup, request) + 1) // setup.page_size) * setup.page_size
    return verified(setup, table, request)[max(0, end - request.seq_len) :]
