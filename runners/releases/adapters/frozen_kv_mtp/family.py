"""A batch of frozen-KV drafts: each request is repeated for its topk branches, which all read its prefix and nothing
else; there is no KV slot to write."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import floats_each, integers_each
from runners.releases.live import Family, Given, Live
from runners.releases.options import gemma4, sliding
from runners.releases.reference import gemma
from runners.releases.reference.question import Reference

# Until 0.5.12 the first drafts come with the batch; later the graph makes them from the last token.
FIRST = ("topk_p", "topk_index")
SPEC = (*FIRST, "bonus_tokens", "hidden_states")
EXPANDED = ("req_pool_indices", "seq_lens", "positions")
CALLER = ("batch_size", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices", "positions")


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """req_pool_indices, seq_lens, positions: [n, topk], each request's own repeated; bonus_tokens: [n]; topk_p:
    float32 [n, topk], falling; topk_index: [n, topk]; hidden_states: [n, hidden], the target's."""
    topk = setup.topk
    data = [r.data for r in requests]
    lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
    per_request = {
        "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
        "seq_lens": lengths,
        "positions": lengths - 1,  # of the last token in the cache: drafts do not move on
    }
    return {name: np.repeat(array[:, None], topk, axis=1) for name, array in per_request.items()} | {
        "bonus_tokens": integers_each(data, "bonus_tokens", (), setup.vocab_size),
        "topk_p": np.sort(np.abs(floats_each(data, "topk_p", (topk,))), axis=1)[:, ::-1].copy(),
        "topk_index": integers_each(data, "topk_index", (topk,), setup.vocab_size),
        "hidden_states": floats_each(data, "hidden_states", (setup.hidden_size,)),
    }


def caller(forward_batch: Any) -> Mapping[str, Any]:
    fields = {name: getattr(forward_batch, name) for name in CALLER}
    return fields | {name: getattr(forward_batch.spec_info, name) for name in SPEC}


def input_buffers(runner: Any) -> Any:
    """All that are filled from the batch."""
    unused = FIRST if hasattr(runner.buffers, "bonus_tokens") else ()
    return SimpleNamespace(**{name: value for name, value in vars(runner.buffers).items() if name not in unused})


def backend(live: Live) -> Any:
    """The draft attention backend."""
    return live.draft.draft_attn_backend


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    names = {
        "kv_indptr": "kv_indptr",
        "kv_indices": "cuda_graph_kv_indices",
        "num_kv_splits": "cuda_graph_num_kv_splits",
        "window_kv_indptr": "window_kv_indptr",
        "window_kv_indices": "cuda_graph_window_kv_indices",
        "window_num_kv_splits": "cuda_graph_window_num_kv_splits",
    }
    tensors = {name: getattr(backend(live), attribute, None) for name, attribute in names.items()}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """One set for all draft steps, and one for its sliding layers, whose KV slots are recorded as the full layers'
    slots of the same tokens. Of kv_indices, as much as this batch can use."""
    setup = live.setup
    used = int(batch["seq_lens"].sum()) + setup.topk * setup.max_bs
    pool = live.draft.draft_model_runner.model.kv_context.target_token_to_kv_pool
    full = sliding.as_full(backend(live).cuda_graph_window_kv_indices, pool)
    indices = {
        "kv_indptr": backend(live).kv_indptr,
        "kv_indices": backend(live).cuda_graph_kv_indices[:used],
        "window_kv_indptr": backend(live).window_kv_indptr,
        "window_kv_indices": full,
    }
    return {name: tensor[None] for name, tensor in indices.items()}


def kv(model_runner: Any) -> list[torch.Tensor]:
    """The target's cache."""
    return sliding.cache(model_runner.model.kv_context.target_token_to_kv_pool)


def reference(live: Live) -> Reference:
    """The reference. Its buffers say, before there is a graph, if the graph makes the first drafts."""
    buffers = importlib.import_module("sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner").FrozenKVMTPInputBuffers
    return gemma.draft(live, seeded="bonus_tokens" in buffers.__dataclass_fields__)


FAMILY = Family(
    given=given,
    flat=frozenset(EXPANDED),
    noisy=("hidden_states",),
    buffers=(*EXPANDED, "seq_lens_cpu", *SPEC),
    caller=caller,
    model_runner=lambda live: live.draft.draft_model_runner,
    configs=lambda setup: (gemma4.target(setup), gemma4.assistant(setup)),
    static=static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len,
    kv=kv,
    input_buffers=input_buffers,
    reference=reference,
)
