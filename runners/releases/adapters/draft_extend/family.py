"""A draft-extend batch: of every request the num_draft_tokens tokens that the verify before it has judged, accepted or
not. The draft model computes all of them; the worker goes on from the last accepted one of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import floats_each, integers_each
from runners.releases.adapters.decode.family import only, sliding_of
from runners.releases.backends import paged_calls, paged_metadata
from runners.releases.live import Family, Given, Live, Outputs
from runners.releases.options import algorithms, mrope
from runners.releases.options.sliding import any_cache
from runners.releases.reference import extending

# What the worker's callers may still look at. Not the accepted counts on spec_info: a padded replay leaves them at the
# bucket's size (in every release), but the worker has its own copy and drops this one.
CALLER = (
    "batch_size",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
    "req_pool_indices",
    "input_ids",
    "positions",
    "out_cache_loc",
    "extend_seq_lens",
)
# Names that a count has had, newest first.
RENAMED = {
    "num_accept_tokens": ("num_accept_tokens", "num_accepted_tokens", "accept_length"),
    "num_correct_drafts": ("num_correct_drafts", "num_accepted_drafts"),
}
BUFFERS = (
    "seq_lens",
    "seq_lens_cpu",
    "req_pool_indices",
    "out_cache_loc",
    "positions",
    "input_ids",
    "hidden_states",
    "extend_seq_lens",
    mrope.NAME,
    *RENAMED,
)


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """req_pool_indices, seq_lens (the new tokens included), extend_prefix_lens, extend_seq_lens, num_accept_tokens,
    num_correct_drafts: [n]; input_ids, positions, out_cache_loc: [n, width]; hidden_states: [n, width, hidden]; of some
    mrope_positions."""
    width, hidden = setup.num_draft_tokens, algorithms.verified_size(setup)
    data = [r.data for r in requests]
    lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
    accepted = np.array([r.accepted for r in requests], dtype=np.int32)
    positions = lengths[:, None] + np.arange(width)
    return {
        "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
        "seq_lens": lengths + width,
        "extend_prefix_lens": lengths.astype(np.int32),
        "extend_seq_lens": np.full(len(requests), width, dtype=np.int32),
        "num_accept_tokens": accepted + 1,  # the token that the target added is accepted as well
        "num_correct_drafts": accepted,
        "input_ids": integers_each(data, "input_ids", (width,), setup.vocab_size),
        "positions": positions,
        **mrope.given(setup, requests, positions),
        "out_cache_loc": np.stack([table[r.slot, columns] for r, columns in zip(requests, positions, strict=True)]),
        "hidden_states": floats_each(data, "hidden_states", (width, hidden)),
    }


def caller(forward_batch: Any) -> Mapping[str, Any]:
    fields = {name: getattr(forward_batch, name) for name in CALLER}
    return {**fields, **mrope.caller(forward_batch), "hidden_states": forward_batch.spec_info.hidden_states}


def input_buffers(runner: Any) -> Any:
    """Under today's names."""
    buffers = {name: getattr(runner.buffers, name, None) for name in BUFFERS}
    if not mrope.is_on(runner):
        del buffers[mrope.NAME]
    for name, names in RENAMED.items():
        buffers[name] = next((getattr(runner.buffers, old) for old in names if hasattr(runner.buffers, old)), None)
    return SimpleNamespace(**buffers)


def neutral_rows(setup: Setup, seq_len: int) -> Mapping[str, int]:
    """seq_len: the backend's own neutral length, 1. The graph has `width` query tokens of every row, padded or not. A
    row extended by its whole width has seq_lens - extend_seq_lens <= 0 tokens before it, so attention reads no KV for
    it; with a smaller, stale extend_seq_lens it would read. num_accept_tokens is the length of the row's queries for
    backends that cut them by it, and has to agree; num_correct_drafts is filled with it. Everything else is 0: request
    0 owns only KV slot 0, to which the row also writes, and position 0 exists."""
    width = setup.num_draft_tokens
    return {"seq_lens": seq_len, **dict.fromkeys(("extend_seq_lens", "num_accept_tokens", "num_correct_drafts"), width)}


def backend(live: Live) -> Any:
    """The attention backend that the graph was captured with; eager uses the draft model's own."""
    return live.draft.draft_extend_attn_backend


def indexing(live: Live) -> Mapping[str, Any]:
    """The buffers of the attention backend; flashinfer's has lists, of one where there are no sliding layers, and
    fills another qo_indptr for graphs."""
    has = backend(live)
    queries = has.cuda_graph_qo_indptr if live.setup.backend == "flashinfer" else has.qo_indptr
    buffers = {"kv_indptr": has.kv_indptr, "kv_indices": has.cuda_graph_kv_indices, "qo_indptr": queries}
    window = sliding_of(has) if live.setup.window else {}
    return {**{name: only(buffer) for name, buffer in buffers.items()}, **window}


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    paged = paged_calls.are_made(live.setup)
    tensors: dict[str, Any] = dict(paged_metadata.static([backend(live)]) if paged else indexing(live))
    tensors["next_token_logits"] = runner.buffers.next_token_logits_buffer
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """One attention call. Of kv_indices as much as a batch can use whose new tokens count as prefix, as they did up to
    0.5.12."""
    used = int(batch["seq_lens"].sum()) + live.setup.max_bs
    if paged_calls.are_made(live.setup):
        return of_pages(live, bs, used)
    indices = {name: buffer[None] for name, buffer in indexing(live).items()}
    return {name: tensor[:, :used] if name.endswith("kv_indices") else tensor for name, tensor in indices.items()}


def of_pages(live: Live, bs: int, used: int) -> Mapping[str, torch.Tensor]:
    """The metadata of the backend that reads page tables."""
    each = live.setup.num_draft_tokens
    return paged_metadata.metadata(paged_calls.calls.of(bs * each, bs), queries=bs * each, each=each, used=used)


def outputs(logits: torch.Tensor, hidden: torch.Tensor, accepted: torch.Tensor, topk: int) -> Outputs:
    """next_token_logits, hidden_states: of all tokens. topk_index, topk_p: what the worker draws from the last accepted
    token of each request, and next_hidden_states, which it hands on."""
    last = last_accepted(accepted, logits.shape[0] // max(1, len(accepted)))
    return {"next_token_logits": logits, "hidden_states": hidden, **drawn(logits[last], hidden[last], topk)}


def last_accepted(accepted: torch.Tensor, width: int) -> torch.Tensor:
    """The place of each request's last accepted token, in one row of all."""
    return torch.arange(len(accepted), device=accepted.device) * width + accepted.to(torch.int64) - 1


def drawn(logits: torch.Tensor, hidden: torch.Tensor, topk: int) -> Outputs:
    """From the last accepted token of each request: topk_index, topk_p, next_hidden_states."""
    best = torch.topk(torch.softmax(logits, dim=-1), topk, dim=-1)
    return {"topk_index": best.indices, "topk_p": best.values, "next_hidden_states": hidden}


FAMILY = Family(
    given=given,
    flat=frozenset({"input_ids", "positions", "out_cache_loc"}),
    noisy=("hidden_states",),
    buffers=BUFFERS,
    caller=caller,
    model_runner=lambda live: live.draft.draft_runner,
    configs=algorithms.configs,
    kv=any_cache,
    static=static,
    metadata=metadata,
    prefix=lambda setup, request: request.seq_len,
    input_buffers=input_buffers,
    # Up to its tokens, a padded row of a graph has less than no tokens: nothing that flashinfer's eager path can plan.
    eager_pads=lambda setup: setup.backend != "flashinfer",
    metadata_after=paged_calls.planned_within,
    reference=extending.draft_extend,
)
