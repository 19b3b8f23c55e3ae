"""A draft batch: per request topk branches, of which each has a position and a KV slot for every draft step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints, draft_positions
from repro.cases.payload import floats_each, integers_each
from repro.cases.setup import as_drafted
from runners.releases.backends import flashinfer_mla, paged_calls, paged_metadata
from runners.releases.live import Family, Given, Live
from runners.releases.options import algorithms, mrope, rejection
from runners.releases.options.sliding import any_cache
from runners.releases.reference import drafting

SPEC = ("topk_p", "topk_index", "hidden_states")
# The sparse keys that draft steps share, as the batch and as the buffer name them.
SHARED, SEED = "dsa_topk_indices", "dsa_seed_topk"
BUFFERS = (
    *("seq_lens", "seq_lens_cpu", "req_pool_indices", "out_cache_loc", "positions", mrope.NAME),
    *SPEC,
    *rejection.NAMES,
    SEED,
)
CALLER = ("batch_size", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices", "positions", "out_cache_loc")


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """req_pool_indices, seq_lens: [n]; out_cache_loc: [n, topk * num_steps]; positions: [n, topk]; topk_p: float32
    [n, topk], falling; topk_index: [n, topk]; hidden_states: [n, hidden]; of some mrope_positions and what drafts are
    drawn by."""
    topk, vocab = setup.topk, algorithms.draft_vocab(setup)
    data = [r.data for r in requests]
    lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
    positions = np.repeat(lengths[:, None], topk, axis=1)
    return {
        "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
        "seq_lens": lengths,
        "out_cache_loc": np.stack([table[r.slot, draft_positions(setup, r.seq_len)].reshape(-1) for r in requests]),
        "positions": positions,
        **mrope.given(setup, requests, positions),
        "topk_p": np.sort(np.abs(floats_each(data, "topk_p", (topk,))), axis=1)[:, ::-1].copy(),
        "topk_index": integers_each(data, "topk_index", (topk,), vocab),
        "hidden_states": floats_each(data, "hidden_states", (as_drafted(setup).hidden_size,)),
        **rejection.given(setup, requests),
    }


def caller(forward_batch: Any) -> Mapping[str, Any]:
    fields = {name: getattr(forward_batch, name) for name in CALLER}
    fields |= {**mrope.caller(forward_batch), **rejection.caller(forward_batch)}
    shared = getattr(forward_batch.spec_info, SHARED, None)
    fields |= {} if shared is None else {SEED: shared}
    return fields | {name: getattr(forward_batch.spec_info, name) for name in SPEC}


def backend(live: Live) -> Any:
    """The multi-step draft attention backend."""
    return live.draft.draft_attn_backend


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    if paged_calls.are_made(live.setup):
        return paged_metadata.static(backend(live).attn_backends)
    names = {
        "kv_indptr": "kv_indptr",
        "kv_indices": "cuda_graph_kv_indices",
        "num_kv_splits": "cuda_graph_num_kv_splits",
    }
    tensors = {name: getattr(backend(live), attribute, None) for name, attribute in names.items()}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """The metadata: of kv_indices, which is as long as the context allows, as much as any draft step of this batch can
    use."""
    setup = live.setup
    if setup.index_share:  # its steps have no indexer, whose calls stand for attention's
        return {}
    used = setup.topk * (int(batch["seq_lens"].sum()) + setup.max_bs * (setup.num_steps + 1))
    if paged_calls.are_made(setup):
        queries = bs * setup.topk
        return paged_metadata.metadata(paged_calls.calls.of(queries, bs), queries=queries, each=1, used=used)
    if flashinfer_mla.is_used(setup):
        wrappers = [each.decode_cuda_graph_metadata[bs] for each in backend(live).attn_backends[: setup.num_steps - 1]]
        return flashinfer_mla.metadata(wrappers, used)
    return {"kv_indptr": backend(live).kv_indptr, "kv_indices": backend(live).cuda_graph_kv_indices[:, :used]}


def input_buffers(runner: Any) -> Any:
    """Without the positions of models that have none in three dimensions."""
    names = [name for name in BUFFERS if name != mrope.NAME or mrope.is_on(runner)]
    buffers = {name: getattr(runner.buffers, name, None) for name in names}
    return SimpleNamespace(**{**buffers, **rejection.input_buffers(runner)})


FAMILY = Family(
    given=given,
    flat=frozenset({"out_cache_loc", "positions"}),
    noisy=("hidden_states",),
    buffers=BUFFERS,
    input_buffers=input_buffers,
    caller=caller,
    model_runner=lambda live: live.draft.draft_runner,
    configs=algorithms.configs,
    static=static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len,
    kv=any_cache,
    metadata_after=paged_calls.planned_within,
    drafts=True,
    reference=drafting.draft,
)
