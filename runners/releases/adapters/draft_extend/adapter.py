"""EAGLEDraftExtendCudaGraphRunner on the draft worker of EAGLE v2, in DRAFT_EXTEND_V2."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative import eagle_info
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

from repro.cases.case import Setup
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from runners.recording.observer import Unsupported
from runners.releases.adapters.draft_extend import family
from runners.releases.catalogue import present_release
from runners.releases.forward_pass import forward_batch, forward_planned, replayed
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.options import adaptive, mrope
from runners.releases.workers import present
from runners.releases.workers.checkpoint import loaded
from runners.releases.workers.verifier import verifier

FACTS = RUNNER_FACTS["draft_extend"]
# Since 0.5.14 the input is of a class of its own; before, sglang defines it and hands over a draft's.
INPUT: Any = eagle_info.EagleDraftExtendInput if present.GENERATION.phased else eagle_info.EagleDraftInput
KNOWN = inspect.signature(INPUT).parameters


def build(setup: Setup, device: str, models: Folders) -> Live:
    order = release_order(present_release())
    if setup.topk > 1 and order < release_order(FACTS.branches_since):  # sglang falls back to the v1 worker
        raise Unsupported("this release's v2 worker extends drafts of topk 1 only: its runner has num_steps + 1 rows")
    since = FACTS.backend_since.get(setup.backend)
    if since and order < release_order(since):
        raise Unsupported(f"before {since} sglang captures no draft-extend graph over {setup.backend}")
    return present.build(setup, device, models)


def capture(live: Live) -> Any:
    def made() -> Any:
        return EAGLEDraftExtendCudaGraphRunner(loaded(live))

    return adaptive.captured(live, adaptive.DRAFT_EXTEND, made, verifier)


def batch(live: Live, rows: Rows) -> Any:
    return batch_for(family.FAMILY.model_runner(live), rows)


def batch_for(runner: Any, rows: Rows) -> Any:
    """For this model runner of the draft, as sglang's init_new makes it of a draft-extend batch."""
    lengths = rows["seq_lens"].cpu()
    extended = rows["extend_seq_lens"].tolist()
    starts = torch.cumsum(rows["extend_seq_lens"], dim=0) - rows["extend_seq_lens"]
    fields = {
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
        "spec_algorithm": runner.spec_algorithm,
        "spec_info": spec_input(rows),
        "capture_hidden_mode": CaptureHiddenMode.FULL,
        **mrope.fields(rows),
    }
    return forward_batch(runner, fields)


def spec_input(rows: Rows) -> Any:
    """The input that the worker hands on: hidden states, and counts of each request's accepted tokens and drafts, under
    the names that this release has for them."""
    width = rows["hidden_states"].shape[1]
    counts = {name: rows[today] for today, names in family.RENAMED.items() for name in names if name in KNOWN}
    return INPUT(
        hidden_states=rows["hidden_states"].flatten(0, 1),
        num_tokens_per_req=width,
        num_tokens_for_logprob_per_req=width,
        **counts,
    )


def accepted(batch: Any) -> torch.Tensor:
    """The accepted tokens of each request, copied: a padded replay replaces them."""
    names = family.RENAMED["num_accept_tokens"]
    spec_info = batch.spec_info
    counts: torch.Tensor = next(getattr(spec_info, name) for name in names if hasattr(spec_info, name))
    return counts.clone()


def graph(runner: Any, batch: Any) -> Outputs:
    counts = accepted(batch)
    return outputs(replayed(runner, batch), counts, topk(runner))


def topk(runner: Any) -> int:
    """Since 0.5.17 the worker alone knows."""
    count: int = runner.topk if hasattr(runner, "topk") else runner.eagle_worker.topk
    return count


def eager(live: Live, batch: Any) -> Outputs:
    counts = accepted(batch)
    return outputs(forward_planned(family.FAMILY.model_runner(live), batch), counts, live.setup.topk)


def outputs(returned: Any, counts: torch.Tensor, topk: int) -> Outputs:
    return family.outputs(returned.next_token_logits, returned.hidden_states, counts, topk)


def neutral(live: Live) -> Mapping[str, int]:
    return family.neutral_rows(live.setup, family.backend(live).get_cuda_graph_seq_len_fill_value())
