"""EAGLEDraftCudaGraphRunner on EAGLEWorker, which is a model worker itself; the batches are those of the second."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.eagle_worker import EAGLEWorker

from repro.cases.case import Setup
from runners.releases.adapters.draft import adapter as second
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.present import server_args, with_draft

capture, batch, graph, eager, neutral = second.capture, second.batch, second.graph, second.eager, second.neutral


def build(setup: Setup, device: str, models: Folders) -> Live:
    live = with_draft(setup, device, server_args(setup, device, models), EAGLEWorker, named)
    live.draft.init_attention_backend()  # once more, now that it may know that graphs are on
    return live


def named(live: Live) -> list[Any]:
    """With the draft model's runner under the name that it has in the second worker."""
    live.draft.draft_runner = live.draft.model_runner
    return [live.draft.draft_runner]
