"""sglang 0.5.10.post1: counts called accept_length, pools on the batch, metadata made by the caller.

The function names are those of `live.Adapter`; later modules replace what broke.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner
from sglang.srt.speculative.eagle_info import EagleDraftInput

from repro.cases.case import Setup
from runners.recording.observer import Unsupported
from runners.releases.checkpoint import loaded
from runners.releases.draft_extend import family
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.workers import v0_5_10
from runners.releases.workers.v0_5_10 import NAME

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def refuse_branches(setup: Setup) -> None:
    """Up to 0.5.12 sglang falls back to the v1 worker where topk is above 1."""
    if setup.topk > 1:
        raise Unsupported("this release's v2 worker extends drafts of topk 1 only: its runner has num_steps + 1 rows")


def build(setup: Setup, device: str, models: Folders) -> Live:
    refuse_branches(setup)
    return v0_5_10.build(setup, device, models)


def capture(live: Live) -> Any:
    if live.setup.backend == "flashinfer":
        raise Unsupported("up to 0.5.13 sglang captures no draft-extend graph over flashinfer")
    return EAGLEDraftExtendCudaGraphRunner(loaded(live, family.FAMILY.model_runner(live).model))


def batch_fields(live: Live, rows: Rows, spec_info: Any) -> dict[str, Any]:
    """What ForwardBatch is made of in every release, as its init_new makes it of a draft-extend batch."""
    lengths = rows["seq_lens"].cpu()
    extended = rows["extend_seq_lens"].tolist()
    starts = torch.cumsum(rows["extend_seq_lens"], dim=0) - rows["extend_seq_lens"]
    return {
        "forward_mode": ForwardMode.DRAFT_EXTEND_V2,
        "batch_size": rows.count,
        "input_ids": rows["input_ids"],
        "req_pool_indices": rows["req_pool_indices"],
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": rows["out_cache_loc"],
        "positions": rows["positions"],
        "extend_num_tokens": sum(extended),
        "extend_seq_lens": rows["extend_seq_lens"],
        "extend_prefix_lens": rows["extend_prefix_lens"],
        "extend_start_loc": starts.to(torch.int32),
        "extend_seq_lens_cpu": extended,
        "extend_prefix_lens_cpu": rows["extend_prefix_lens"].tolist(),
        "return_logprob": False,
        "spec_algorithm": family.FAMILY.model_runner(live).spec_algorithm,
        "spec_info": spec_info,
        "capture_hidden_mode": CaptureHiddenMode.FULL,
    }


def spec_input(kind: Any, rows: Rows, tokens: str, drafts: str = "") -> Any:
    """What the worker hands on. tokens, drafts: what this release calls the counts of a request's accepted tokens, the
    target's own included, and of its accepted drafts."""
    counts = {tokens: rows["num_accept_tokens"]} | ({drafts: rows["num_correct_drafts"]} if drafts else {})
    width = rows["input_ids"].shape[0] // rows.count
    return kind(
        hidden_states=rows["hidden_states"].flatten(0, 1),
        num_tokens_per_req=width,
        num_tokens_for_logprob_per_req=width,
        **counts,
    )


def with_pools(live: Live, rows: Rows, spec_info: Any) -> Any:
    """A batch that carries pools and backend, as up to 0.5.12."""
    runner = family.FAMILY.model_runner(live)
    return ForwardBatch(
        **batch_fields(live, rows, spec_info),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )


def batch(live: Live, rows: Rows) -> Any:
    return with_pools(live, rows, spec_input(EagleDraftInput, rows, "accept_length"))


def accepted(forward_batch: Any) -> torch.Tensor:
    """The accepted tokens of each request, copied: a padded replay replaces them."""
    names = family.RENAMED["num_accept_tokens"]
    spec_info = forward_batch.spec_info
    counts: torch.Tensor = next(getattr(spec_info, name) for name in names if hasattr(spec_info, name))
    return counts.clone()


def graph(runner: Any, forward_batch: Any) -> Outputs:
    counts = accepted(forward_batch)
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return outputs(runner.replay(forward_batch), counts, runner.topk)


def eager(live: Live, forward_batch: Any) -> Outputs:
    runner = family.FAMILY.model_runner(live)
    runner.attn_backend.init_forward_metadata(forward_batch)
    returned = runner.forward(forward_batch, skip_attn_backend_init=True).logits_output
    return outputs(returned, accepted(forward_batch), live.setup.topk)


def outputs(returned: Any, counts: torch.Tensor, topk: int) -> Outputs:
    return family.outputs(returned.next_token_logits, returned.hidden_states, counts, topk)


def neutral(live: Live) -> Mapping[str, int]:
    return family.neutral(live.setup, family.backend(live).get_cuda_graph_seq_len_fill_value())
