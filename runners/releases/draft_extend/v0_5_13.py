"""sglang 0.5.13: as many rows a request as the tree is wide, so topk above 1 as well; pools and backend leave
ForwardBatch, and a batch says whether its attention metadata is ready."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from runners.releases.draft_extend import family
from runners.releases.draft_extend.v0_5_10 import (
    accepted,
    batch_fields,
    capture,
    graph,
    neutral,
    outputs,
    spec_input,
)
from runners.releases.live import Live, Outputs, Rows
from runners.releases.workers.v0_5_11 import build

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.13"


def batch(live: Live, rows: Rows) -> Any:
    spec_info = spec_input(EagleDraftInput, rows, "num_accept_tokens", "num_correct_drafts")
    return ForwardBatch(**batch_fields(live, rows, spec_info))


def eager(live: Live, forward_batch: Any) -> Outputs:
    runner = family.FAMILY.model_runner(live)
    runner.attn_backend.init_forward_metadata(forward_batch)
    forward_batch.mark_forward_metadata_ready()
    returned = runner.forward(forward_batch).logits_output
    return outputs(returned, accepted(forward_batch), live.setup.topk)
