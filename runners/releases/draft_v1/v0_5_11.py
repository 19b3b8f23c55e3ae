"""sglang 0.5.11 and 0.5.12: row 0 of the request pool is reserved for padding."""

from __future__ import annotations

from sglang.srt.speculative.eagle_worker import EAGLEWorker

from repro.cases.case import Setup
from runners.releases.draft_v1.v0_5_10 import batch, capture, eager, graph, named, neutral
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.v0_5_10 import one_phase, server_args

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.11"


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return named(one_phase(setup, device, arguments, EAGLEWorker))
