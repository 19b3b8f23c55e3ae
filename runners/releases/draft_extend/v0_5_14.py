"""sglang 0.5.14 and 0.5.15: can_run_graph/execute, and an input class of its own."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from runners.releases.checkpoint import loaded
from runners.releases.draft_extend.family import FAMILY
from runners.releases.draft_extend.v0_5_10 import accepted, batch_fields, neutral, outputs, spec_input
from runners.releases.draft_extend.v0_5_13 import eager
from runners.releases.live import Live, Outputs, Rows
from runners.releases.workers.v0_5_14 import NAME, build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def capture(live: Live) -> Any:
    return EAGLEDraftExtendCudaGraphRunner(loaded(live, FAMILY.model_runner(live).model))


def batch(live: Live, rows: Rows) -> Any:
    spec_info = spec_input(EagleDraftExtendInput, rows, "num_accept_tokens", "num_correct_drafts")
    return ForwardBatch(**batch_fields(live, rows, spec_info))


def graph(runner: Any, forward_batch: Any) -> Outputs:
    counts = accepted(forward_batch)
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return outputs(runner.execute(forward_batch), counts, runner.topk)
