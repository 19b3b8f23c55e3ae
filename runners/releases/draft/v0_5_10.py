"""sglang 0.5.10.post1: runners that capture in their constructor, pools on the batch.

The function names are those of `live.Adapter`; later modules replace what broke.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
from sglang.srt.speculative.eagle_info import EagleDraftInput

from runners.releases.checkpoint import loaded
from runners.releases.draft.family import FAMILY, backend
from runners.releases.live import Live, Outputs, Rows
from runners.releases.workers.v0_5_10 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def capture(live: Live) -> Any:
    return EAGLEDraftCudaGraphRunner(loaded(live, FAMILY.model_runner(live).model))


def spec_input(rows: Rows) -> Any:
    return EagleDraftInput(
        topk_p=rows["topk_p"],
        topk_index=rows["topk_index"],
        hidden_states=rows["hidden_states"],
        capture_hidden_mode=CaptureHiddenMode.LAST,
    )


def batch_fields(live: Live, rows: Rows) -> dict[str, Any]:
    """What ForwardBatch is made of in every release."""
    lengths = rows.host("seq_lens")
    return {
        "forward_mode": ForwardMode.DECODE,
        "batch_size": rows.count,
        "input_ids": None,
        "req_pool_indices": rows["req_pool_indices"],
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": rows["out_cache_loc"],
        "positions": rows["positions"],
        "return_logprob": False,
        "spec_algorithm": FAMILY.model_runner(live).spec_algorithm,
        "spec_info": spec_input(rows),
        "capture_hidden_mode": CaptureHiddenMode.LAST,
    }


def batch(live: Live, rows: Rows) -> Any:
    runner = FAMILY.model_runner(live)
    return ForwardBatch(
        **batch_fields(live, rows),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )


def drafts(returned: Any) -> Outputs:
    """parents, scores_index, tokens: n rows each."""
    parents, scores_index, tokens = returned[:3]
    return {"parents": parents, "scores_index": scores_index, "tokens": tokens}


def graph(runner: Any, forward_batch: Any) -> Outputs:
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return drafts(runner.replay(forward_batch))


def eager(live: Live, forward_batch: Any) -> Outputs:
    backend(live).init_forward_metadata(forward_batch)
    return drafts(live.draft.draft_forward(forward_batch))


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).attn_backends[0].get_cuda_graph_seq_len_fill_value()}
