"""The positions of its request's row of req_to_token that each attention call reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.layout import WINDOW, Ints, Paged, draft_positions


class Attending(Paged, Protocol):
    """The parts of a Setup that decide what attention reads."""

    @property
    def backend(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def one_graph(self) -> bool: ...


class Prefixed(Protocol):
    """The parts of a Request that decide what attention reads for it."""

    @property
    def slot(self) -> int: ...
    @property
    def seq_len(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The reads that the metadata of one kind of attention calls must name."""

    # Attention calls whose metadata is recorded: the rows of kv_indptr and kv_indices.
    calls: Callable[[Attending], int]
    # What one call reads for a request: [sequences of the request, length].
    positions: Callable[[Attending, Prefixed, int], Ints]
    # Query tokens of a sequence, where qo_indptr says so; None where each has one.
    queries: Callable[[Attending], int] | None = None
    # Whether its queries are the tokens of a tree.
    of_tree: bool = False
    # What the names of this metadata begin with: "window_" is that of sliding layers.
    prefix: str = ""
    # The layer that reads so, where layers differ; None: any.
    layer: int | None = None
    # How many of these positions must be read at least, the last ones, where a kernel masks the others; all of them
    # where it is not given. It may be more than there are.
    fewest: Callable[[Attending, Prefixed], int] | None = None

    @property
    def whose(self) -> str:
        """The suffix of a failure's place by which failures of these reads differ from others."""
        return ", window" if self.prefix else ""

    def least(self, setup: Attending, request: Prefixed, length: int) -> int:
        """The number of the last positions that must be read, out of `length`."""
        return min(length, self.fewest(setup, request)) if self.fewest else length


def names_tree(setup: Attending) -> bool:
    """True if the KV indices of this backend include the tree's own tokens; others pass these beside the indices."""
    return BACKEND_FACTS[setup.backend].indexes_queries


def drafts(setup: Attending, request: Prefixed, call: int) -> Ints:
    """Every branch: the prefix, then its own drafts up to this draft step. What reads whole pages reads of the prefix's
    last one the branch's own copy, which lies on the page where its drafts begin."""
    drafted = draft_positions(setup, request.seq_len)
    copied = request.seq_len % setup.page_size if BACKEND_FACTS[setup.backend].reads_pages else 0
    shared = request.seq_len - copied
    positions = np.empty((setup.topk, request.seq_len + call + 1), dtype=np.int64)
    positions[:, :shared] = np.arange(shared)
    positions[:, shared : request.seq_len] = drafted[:, :1] - np.arange(copied, 0, -1)
    positions[:, request.seq_len :] = drafted[:, : call + 1]
    return positions


def draft_in_reach(setup: Attending, request: Prefixed) -> int:
    """The number of a branch's positions that its last token sees: a window before it, and itself."""
    return setup.window + 1


def tokens(setup: Attending, request: Prefixed, call: int) -> Ints:
    """All tokens of the request, the one that is decoded included."""
    return np.arange(request.seq_len, dtype=np.int64)[None, :]


def verified(setup: Attending, request: Prefixed, call: int) -> Ints:
    """The prefix, and the tokens of the tree where the backend names those in kv_indices as well."""
    tree = setup.num_draft_tokens if names_tree(setup) else 0
    return np.arange(request.seq_len + tree, dtype=np.int64)[None, :]


def prefixes(setup: Attending, request: Prefixed, call: int) -> Ints:
    """Every branch: the prefix alone, in all draft steps."""
    return np.broadcast_to(np.arange(request.seq_len), (setup.topk, request.seq_len))


def windows(setup: Attending, request: Prefixed, call: int) -> Ints:
    """Every branch: the last tokens of the prefix."""
    last = np.arange(max(0, request.seq_len - (setup.window or WINDOW)), request.seq_len)
    return np.broadcast_to(last, (setup.topk, last.size))


def in_window(setup: Attending, request: Prefixed, call: int) -> Ints:
    """The positions that a decoded token sees: itself, and a window before it."""
    return np.arange(max(0, request.seq_len - setup.window - 1), request.seq_len)[None, :]


def verified_in_window(setup: Attending, request: Prefixed, call: int) -> Ints:
    """The same positions as `verified`: kernels mask those outside the window. For a backend that reads whole pages the
    record has only what each query reads: the last tokens before the root, and the tree; with branches each query has a
    row of its own, and rows of a padded tree are slot 0 throughout."""
    if not BACKEND_FACTS[setup.backend].reads_pages:
        return verified(setup, request, call)
    tree = setup.num_draft_tokens
    if setup.topk > 1 and not request.slot:
        return np.zeros((1, min(setup.window, tree) + 1), dtype=np.int64)
    return np.arange(max(0, request.seq_len - setup.window), request.seq_len + tree)[None, :]


def before_tree(setup: Attending, request: Prefixed, call: int) -> Ints:
    """The positions before the tokens of the tree that was verified. A padded row has none, since all its tokens are
    the tree's. A backend whose indices include its queries gets these as well, and a padded row's whole length."""
    count = request.seq_len if request.slot else 0
    if names_tree(setup):
        count = request.seq_len + (setup.num_draft_tokens if request.slot else 0)
    return np.arange(count, dtype=np.int64)[None, :]


def before_grown_tree(layer: int) -> Callable[[Attending, Prefixed, int], Ints]:
    """Up to 0.5.14 every layer of several goes over one token more, which the one before it had in its prefix."""

    def positions(setup: Attending, request: Prefixed, call: int) -> Ints:
        prefix = before_tree(setup, request, call)
        return prefix[:, : max(0, prefix.shape[1] - layer)]

    return positions


def in_reach(setup: Attending, request: Prefixed) -> int:
    """The number of a verified or extended request's positions that some token of its tree sees through the window;
    kernels mask what the other tokens do not see."""
    tree = setup.num_draft_tokens if names_tree(setup) else 0
    return setup.window + tree


def one_call(setup: Attending) -> int:
    """A single attention call for all tokens of the batch."""
    return 1


def call_per_graphs_layer(setup: Attending) -> int:
    """One attention call for each layer that the first graph holds: for all of a draft's, or for the first."""
    return setup.num_steps if setup.one_graph else 1


def call_per_draft_step(setup: Attending) -> int:
    """One attention call for each draft step but the first, which only samples."""
    return setup.num_steps - 1


def tree_queries(setup: Attending) -> int:
    """Each sequence asks for all tokens of its tree."""
    return setup.num_draft_tokens
