"""The ranks of a server: how many there are, and the share that one of them has of a model."""

from __future__ import annotations

from dataclasses import replace

from repro.cases.buffer_facts import DP_RANKS
from repro.cases.setup import Setup

# sglang fills a vocabulary up to a multiple of this before ranks share it (vocab_parallel_embedding.py).
VOCABULARY_STEP = 64
# How many ranks share a model where it is shared.
SHARERS = 2
_HEADS = "num_heads", "draft_num_heads"
_KV_HEADS = "num_kv_heads", "draft_num_kv_heads"


def groups_of(setup: Setup) -> int:
    """Groups of ranks that serve requests of their own."""
    return DP_RANKS if setup.dp_attention else 1


def ranks_of(setup: Setup) -> int:
    """All ranks."""
    return max(setup.tp_size, groups_of(setup))


def sharers_of(setup: Setup) -> int:
    """Ranks of a group, which share heads and vocabulary."""
    return ranks_of(setup) // groups_of(setup)


def like_server(ranks: int, groups: int) -> int:
    """The tp_size of setups like a server of so many ranks, in so many groups."""
    return SHARERS * min(groups, DP_RANKS) if ranks > groups else 1


def share_of(setup: Setup) -> Setup:
    """The setup of a model that is as large as one rank's share: KV heads that are fewer than ranks are everyone's."""
    ranks = sharers_of(setup)
    if ranks == 1:
        return setup
    sizes = {name: getattr(setup, name) // ranks for name in ("vocab_size", *_HEADS)}
    sizes |= {name: -(-getattr(setup, name) // ranks) for name in _KV_HEADS}
    return replace(setup, tp_size=1, **sizes)


def is_shared_evenly(setup: Setup) -> bool:
    """True if ranks have as many heads, and as many tokens of the vocabulary, without one that is filled up."""
    ranks = sharers_of(setup)
    whole = [getattr(setup, name) % ranks for name in _HEADS]
    kept = [min(count % ranks, ranks % count) for count in (getattr(setup, name) for name in _KV_HEADS) if count]
    return not any((*whole, *kept, setup.vocab_size % (VOCABULARY_STEP * ranks)))
