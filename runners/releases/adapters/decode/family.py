"""A decode batch: per request the token that is decoded, its position and its KV slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers_each
from runners.releases.backends import flashinfer_mla, paged_calls, paged_metadata
from runners.releases.backends.full_layers import of_full_layers
from runners.releases.live import Family, Given, Live
from runners.releases.options import algorithms
from runners.releases.options.sliding import any_cache, as_full
from runners.releases.reference import target

CALLER = (
    "batch_size",
    "input_ids",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
    "req_pool_indices",
    "positions",
    "out_cache_loc",
)


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """All [n]: input_ids, req_pool_indices, seq_lens, which counts the token that is decoded, its positions and its
    out_cache_loc."""
    lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
    slots = np.array([r.slot for r in requests], dtype=np.int64)
    return {
        "input_ids": integers_each([r.data for r in requests], "input_ids", (), setup.vocab_size),
        "req_pool_indices": slots,
        "seq_lens": lengths,
        "positions": lengths - 1,
        "out_cache_loc": table[slots, lengths - 1],
    }


def caller(forward_batch: Any) -> Mapping[str, Any]:
    return {name: getattr(forward_batch, name) for name in CALLER}


def backend(live: Live) -> Any:
    """The target's attention backend; that of the full layers, where others are recurrent."""
    return of_full_layers(live.target.model_runner.attn_backend)


def sliding(live: Live) -> Mapping[str, torch.Tensor]:
    """The metadata of sliding layers, where there are any: Triton has buffers of its own for them, flashinfer lists of
    two, theirs first."""
    setup = live.setup
    if paged_calls.are_made(setup):
        return {}
    indices = sliding_of(backend(live)) if setup.window else {}
    if setup.swa:
        indices = {**indices, "window_kv_indices": as_full(indices["window_kv_indices"], own_pool(live))}
    return indices


def own_pool(live: Live) -> Any:
    """The pool where sliding layers have KV slots of their own, else None."""
    return live.target.model_runner.token_to_kv_pool if live.setup.swa else None


def sliding_used(live: Live, used: int) -> Mapping[str, torch.Tensor]:
    """The same as a call's: so many indices, and of every row where it begins, in an idle batch as well."""
    return {name: tensor[None, : None if name.endswith("indptr") else used] for name, tensor in sliding(live).items()}


def sliding_of(backend: Any) -> Mapping[str, torch.Tensor]:
    """The same of one attention backend."""
    if isinstance(backend.kv_indptr, list):
        return {"window_kv_indptr": backend.kv_indptr[0], "window_kv_indices": backend.cuda_graph_kv_indices[0]}
    return {"window_kv_indptr": backend.window_kv_indptr, "window_kv_indices": backend.cuda_graph_window_kv_indices}


def only(buffer: Any) -> Any:
    """A buffer of an attention backend; flashinfer's keeps a list, with that of sliding layers first, if there are."""
    return buffer[-1] if isinstance(buffer, list) else buffer


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    """The static tensors of the Triton and the flashinfer backend, and token ids and such that padding leaves alone."""
    names = {
        "kv_indptr": "kv_indptr",
        "kv_indices": "cuda_graph_kv_indices",
        "num_kv_splits": "cuda_graph_num_kv_splits",
        "attn_logits": "cuda_graph_attn_logits",
        "attn_lse": "cuda_graph_attn_lse",
        "qo_indptr": "qo_indptr",
        "mask_indptr": "mask_indptr",
        "custom_mask": "cuda_graph_custom_mask",
    }
    tensors = {name: only(getattr(backend(live), attribute, None)) for name, attribute in names.items()}
    if paged_calls.are_made(live.setup):
        tensors |= paged_metadata.static([backend(live)])
    tensors["next_token_logits"] = runner.buffers.next_token_logits_buffer
    tensors |= sliding(live)
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """The metadata: of kv_indices, which is as long as the context allows, as much as this batch can use."""
    used = int(batch["seq_lens"].sum()) + live.setup.max_bs
    if paged_calls.are_made(live.setup):
        return paged_metadata.metadata(paged_calls.calls.of(bs, bs), queries=bs, each=1, used=used, pool=own_pool(live))
    if flashinfer_mla.is_used(live.setup):
        return flashinfer_mla.metadata([backend(live).decode_cuda_graph_metadata[bs]], used)
    return {
        "kv_indptr": only(backend(live).kv_indptr)[None],
        "kv_indices": only(backend(live).cuda_graph_kv_indices)[None, :used],
        **sliding_used(live, used),
    }


FAMILY = Family(
    given=given,
    flat=frozenset(),
    noisy=(),
    buffers=("input_ids", "seq_lens", "seq_lens_cpu", "req_pool_indices", "out_cache_loc", "positions"),
    caller=caller,
    model_runner=lambda live: live.target.model_runner,
    configs=algorithms.configs,
    static=static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len - 1,
    kv=any_cache,
    metadata_after=paged_calls.planned_within,
    reference=target.decode,
)
