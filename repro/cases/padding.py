"""The buffers whose padded rows sglang leaves as they are, and what is harmless there: by name a half-open range.

All other buffers' padded rows hold a neutral value, which adapters ask sglang for (Adapter.neutral)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Ranges = Mapping[str, tuple[float, float]]

FINITE = 60_000  # beyond every activation of these models, and a number in every dtype


class Sized(Protocol):
    """The parts of a Setup that bound what a row may hold."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def overhang(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...


def all_reset(setup: Sized) -> Ranges:
    """Where every padded row is reset."""
    return {}


def sampled_rows(setup: Sized) -> Ranges:
    """By what a padded row of random drafts samples is never reset; it must be able to sample by it: no request has a
    temperature below sglang's smallest one."""
    return {"temperatures": (1e-6, FINITE), "top_ks": (1, 1 << 31)}


def earlier_tokens(setup: Sized) -> Ranges:
    """A padded row computes tokens of an earlier batch at their positions again, and writes them into KV slot 0."""
    return {"input_ids": (0, setup.vocab_size), "positions": (0, setup.context_len + setup.overhang)}


def extended_tokens(setup: Sized) -> Ranges:
    """A padded row's tokens and hidden states are never reset, in any release, and need not be: it has no prefix and
    nobody else's tokens in view, its keys and values go to KV slot 0, and its logits are cut off. But its ids index
    the embedding table, so they must lie in the vocabulary, and what it leaves in slot 0 must be numbers: a padded row
    of the next draft reads them, and a mask by multiplication does not stop a NaN (both as in #23037).

    num_correct_drafts: sglang fills in the width; that would be one draft more than such a row can hold. Nothing reads
    it for padded rows; any count up to the width fits the row.
    """
    return {
        "input_ids": (0, setup.vocab_size),
        "hidden_states": (-FINITE, FINITE),
        "num_correct_drafts": (0, setup.num_draft_tokens + 1),
    }


def layered_tokens(setup: Sized) -> Ranges:
    """As for one layer. No release resets the counts of padded rows: they pick the token from which a padded row draws,
    so any count that stays inside the row is harmless."""
    width = setup.num_draft_tokens
    return {**extended_tokens(setup), "num_accept_tokens": (0, width + 1), "num_correct_drafts": (0, width)}


def frozen_seeds(setup: Sized) -> Ranges:
    """Token numbers index the embeddings; the others are only looked at by their own row."""
    numbers = dict.fromkeys(("bonus_tokens", "topk_index"), (0, setup.vocab_size))
    return {**numbers, "topk_p": (0, 2), "hidden_states": (-2, 2)}
