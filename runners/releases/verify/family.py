"""A verify batch: per request a tree of num_draft_tokens tokens, which the draft model proposes just before the call,
and behind its prefix a KV slot for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repro.case import Request, Setup
from repro.layout import Ints
from repro.payload import integers
from runners.releases import model
from runners.releases.decode import family as decode
from runners.releases.draft import family as draft
from runners.releases.live import Family, Given, Live

# What the draft is given, where the verify call has something else under that name.
DRAFT = {"draft_out_cache_loc": "out_cache_loc", "draft_positions": "positions"}


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """req_pool_indices, seq_lens, which counts the prefix alone, and bonus_tokens, the roots of the trees: [n];
    out_cache_loc: [n, num_draft_tokens]; and what the draft is given."""
    drafted = draft.given(setup, table, requests)
    renamed = {name: drafted[old] for name, old in DRAFT.items()}
    tokens = np.arange(setup.num_draft_tokens, dtype=np.int64)
    return {
        **{name: array for name, array in drafted.items() if name not in DRAFT.values()},
        **renamed,
        "out_cache_loc": np.stack([table[r.slot, r.seq_len + tokens] for r in requests]),
        "bonus_tokens": np.concatenate([integers(r.data, "bonus_tokens", (1,), setup.vocab_size) for r in requests]),
    }


def metadata(live: Live, runner: Any, bs: int, given: Given) -> Mapping[str, torch.Tensor]:
    """Of kv_indices and custom_mask, which are as long as the context allows, as much as this batch can use."""
    setup, backend = live.setup, decode.backend(live)
    lengths = int(given["seq_lens"].sum())
    bits = setup.num_draft_tokens * (lengths + len(given["seq_lens"]) * setup.num_draft_tokens)
    return {
        "kv_indptr": backend.kv_indptr[None],
        "kv_indices": backend.cuda_graph_kv_indices[None, : lengths + setup.max_bs],
        "qo_indptr": backend.qo_indptr[None],
        "mask_indptr": backend.mask_indptr,
        "custom_mask": backend.cuda_graph_custom_mask[:bits],
    }


def ranges(setup: Setup) -> Mapping[str, tuple[int, int]]:
    """A padded row verifies a tree of an earlier batch again, and writes it into KV slot 0."""
    return {"input_ids": (0, setup.vocab_size), "positions": (0, setup.context_len)}


FAMILY = Family(
    given=given,
    flat=frozenset({"out_cache_loc", *DRAFT}),
    noisy=(),
    buffers=decode.FAMILY.buffers,
    caller=decode.caller,
    model_runner=lambda live: live.target.model_runner,
    configs=lambda setup: (model.llama(setup), model.llama(setup, "LlamaForCausalLMEagle")),
    static=decode.static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len,
    ranges=ranges,
    others=lambda live: [live.draft.draft_runner],
)
