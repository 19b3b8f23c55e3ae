"""EAGLEDraftCudaGraphRunner on the draft worker of EAGLE v2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import unwrap
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
from sglang.srt.speculative.eagle_info import EagleDraftInput

from runners.releases.adapters.draft.family import FAMILY, backend
from runners.releases.forward_pass import forward_batch, plan, replayed
from runners.releases.live import Live, Outputs, Rows
from runners.releases.options import adaptive, mrope, rejection
from runners.releases.workers import present
from runners.releases.workers.checkpoint import loaded
from runners.releases.workers.verifier import verifier

build = present.build


def capture(live: Live) -> Any:
    if live.device == "cpu":
        # Since 0.5.16 a GPU samples the tokens of chains by a kernel (draft_topk1_postprocess), which joins them, too.
        unwrap(type(live.draft).draft_forward).__globals__["_is_cuda"] = True
    return adaptive.captured(live, adaptive.DRAFT, partial(_capture, live), verifier)


def _capture(live: Live) -> Any:
    with rejection.drawing(live) as draws:
        runner = EAGLEDraftCudaGraphRunner(loaded(live))
    rejection.keep(runner, draws)
    return runner


def spec_input(rows: Rows) -> Any:
    return EagleDraftInput(
        topk_p=rows["topk_p"],
        topk_index=rows["topk_index"],
        hidden_states=rows["hidden_states"],
        capture_hidden_mode=CaptureHiddenMode.LAST,
        **rejection.of_spec(rows),
    )


def batch(live: Live, rows: Rows) -> Any:
    runner = FAMILY.model_runner(live)
    lengths = rows.host("seq_lens")
    fields = {
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
        "spec_algorithm": runner.spec_algorithm,
        "spec_info": spec_input(rows),
        "capture_hidden_mode": CaptureHiddenMode.LAST,
        **mrope.fields(rows),
        **rejection.fields(rows, live.setup.vocab_size, SamplingBatchInfo),
    }
    return forward_batch(runner, fields)


def drafts(returned: Any) -> Outputs:
    """parents, scores_index, tokens: n rows each; of random drafts draft_probs, what each was drawn from."""
    names = ("parents", "scores_index", "tokens", rejection.PROBABILITIES)
    return {name: tensor for name, tensor in zip(names, returned, strict=False) if tensor is not None}


def graph(runner: Any, batch: Any) -> Outputs:
    return drafts(replayed(runner, batch))


def eager(live: Live, batch: Any) -> Outputs:
    if batch.forward_mode.is_idle():  # as prepare_for_draft leaves it; each step pads it anew, and nothing is planned
        batch.input_ids = batch.seq_lens.new_empty(0)
        batch.spec_info.num_tokens_per_req = live.setup.topk
    elif backend(live) is not None:  # a single step only samples
        plan(backend(live), batch)
    with rejection.drawing(live):
        return drafts(live.draft.draft_forward(batch))


def neutral(live: Live) -> Mapping[str, int]:
    filled = {"seq_lens": backend(live).attn_backends[0].get_cuda_graph_seq_len_fill_value()}
    return filled | {rejection.TEMPERATURES: 1, rejection.TOP_KS: rejection.EVERY_TOKEN}
