"""A verify batch: per request a tree of num_draft_tokens tokens, which the draft model proposes just before the call,
and behind its prefix a KV slot for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers_each
from repro.cases.runner_facts import IN_BLOCKS
from runners.releases.adapters.decode import family as decode
from runners.releases.adapters.draft import family as draft
from runners.releases.backends import flashinfer_mla, paged_calls, paged_metadata
from runners.releases.forward_pass import verify_spelling
from runners.releases.live import Family, Given, Live
from runners.releases.options import algorithms
from runners.releases.options.sliding import any_cache
from runners.releases.reference import target

# Where each token of a tree is in the batch, its first child and the next child of its parent.
THROUGH = ("index", "next_token", "next_sibling")
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
        "bonus_tokens": integers_each([r.data for r in requests], "bonus_tokens", (), setup.vocab_size),
    }


def caller(forward_batch: Any) -> Mapping[str, Any]:
    """With the ways through the tree, by which its tokens are accepted behind the pass: a row for each request. A block
    has none."""
    spec_info, spelling = forward_batch.spec_info, verify_spelling()
    through = {name: getattr(spec_info, f"{spelling}_{name}", None) for name in THROUGH}
    return {**decode.caller(forward_batch), **through}


def mask_of(backend: Any) -> torch.Tensor:
    """The mask of the Triton backend, since 0.5.17 in an object with how it is laid out."""
    held_mask = getattr(backend, "verify_mask", None)
    mask: torch.Tensor = backend.cuda_graph_custom_mask if held_mask is None else held_mask.buffer
    return mask


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    mask = getattr(decode.backend(live), "verify_mask", None)
    return {**decode.static(live, runner), **({} if mask is None else {"custom_mask": mask.buffer})}


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """The metadata: of kv_indices and custom_mask, which are as long as the context allows, as much as this batch can
    use."""
    setup, backend = live.setup, decode.backend(live)
    lengths = int(batch["seq_lens"].sum())
    if flashinfer_mla.is_used(setup):
        used = lengths + (len(batch["seq_lens"]) + setup.max_bs) * (1 + setup.num_draft_tokens)
        return flashinfer_mla.metadata([backend.prefill_cuda_graph_metadata[bs]], used)
    if setup.backend == "flashinfer":
        return flashinfer_metadata(live, batch)
    if paged_calls.are_made(setup):
        each = setup.num_draft_tokens
        used = lengths + setup.max_bs * (1 + each)
        pool = decode.own_pool(live)
        # A sliding layer reads a tree query by query. In rounds the draft-extend's graphs have as many queries.
        sequences = bs * each if setup.window and setup.topk > 1 else bs
        calls = paged_calls.calls.of(bs * each, sequences)
        return paged_metadata.metadata(calls, queries=bs * each, each=each, used=used, pool=pool)
    bits = setup.num_draft_tokens * (lengths + len(batch["seq_lens"]) * setup.num_draft_tokens)
    masks = {"mask_indptr": backend.mask_indptr, "custom_mask": mask_of(backend)[:bits]} if _is_tree(setup) else {}
    return {
        "kv_indptr": backend.kv_indptr[None],
        "kv_indices": backend.cuda_graph_kv_indices[None, : lengths + setup.max_bs],
        "qo_indptr": backend.qo_indptr[None],
        **masks,
        **decode.sliding_used(live, lengths + setup.max_bs),
    }


def _is_tree(setup: Setup) -> bool:
    """False of a block, whose tokens attend to all of it or to those before them, with no mask that says so."""
    return setup.algorithm not in IN_BLOCKS


def flashinfer_metadata(live: Live, batch: Given) -> Mapping[str, torch.Tensor]:
    """flashinfer attends to the tokens of the tree in the KV cache as well, and packs its mask: eight entries a byte,
    every row from a byte of its own on. Recorded as if it were not packed; a row that starts at a wrong byte starts
    at a wrong entry."""
    setup, backend = live.setup, decode.backend(live)
    # Of sliding layers, if there are any, which may be planned with the ends of the sequences alone.
    sliding, count = 0, len(batch["seq_lens"])
    lengths = batch["seq_lens"].astype(np.int64) + setup.num_draft_tokens
    if setup.window:
        lengths = np.diff(backend.kv_indptr[sliding][: count + 1].cpu().numpy()).astype(np.int64)
    entries = setup.num_draft_tokens * lengths
    first = 8 * np.append(0, np.cumsum(-(-entries // 8)))
    places = np.concatenate(
        [start + np.arange(size) for start, size in zip(first, entries, strict=False)] or [np.empty(0, dtype=np.int64)]
    )
    used = int(batch["seq_lens"].sum()) + (count + setup.max_bs) * (1 + setup.num_draft_tokens)
    read = {
        "kv_indptr": backend.kv_indptr[-1][None],
        "kv_indices": backend.cuda_graph_kv_indices[-1][None, :used],
        "qo_indptr": backend.cuda_graph_qo_indptr[-1][None],
        **decode.sliding_used(live, used),
    }
    if not _is_tree(setup):
        return read
    packed, starts = backend.cuda_graph_custom_mask, backend.cuda_graph_qk_indptr[sliding][: len(first)]
    place = torch.from_numpy(places).to(packed.device)
    expected = torch.from_numpy(np.stack([first, np.append(0, np.cumsum(entries))])).to(packed.device)
    return {
        **read,
        "mask_indptr": expected[1] + 8 * starts - expected[0],
        "custom_mask": (packed[place // 8] >> (place % 8)).to(torch.uint8) & 1,
    }


FAMILY = Family(
    given=given,
    flat=frozenset({"out_cache_loc", *DRAFT}),
    noisy=(),
    buffers=decode.FAMILY.buffers,
    caller=caller,
    model_runner=lambda live: live.target.model_runner,
    configs=algorithms.verifying,
    static=static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len,
    kv=any_cache,
    others=lambda live: [live.draft.draft_runner],
    metadata_after=paged_calls.planned_within,
    drafts=True,
    reference=target.verify,
)
