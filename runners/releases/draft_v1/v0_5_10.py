"""sglang 0.5.10.post1: EAGLEWorker, which is a model worker itself."""

from __future__ import annotations

from sglang.srt.speculative.eagle_worker import EAGLEWorker

from repro.cases.case import Setup
from runners.releases.draft.v0_5_10 import batch, capture, eager, graph, neutral
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.v0_5_10 import one_phase, server_args

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.10"


def build(setup: Setup, device: str, models: Folders) -> Live:
    return named(one_phase(setup, device, server_args(setup, device, models), EAGLEWorker))


def named(live: Live) -> Live:
    """With the draft model's runner under the name that it has in the second worker."""
    live.draft.draft_runner = live.draft.model_runner
    return live
