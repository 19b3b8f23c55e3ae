"""sglang 0.5.15: whether to compile is kept in the runtime's flags."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_flags

from repro.cases.case import Setup
from runners.releases.cpu_decode import compiling
from runners.releases.cpu_decode.v0_5_14 import batch, eager, graph, neutral
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.v0_5_15 import NAME, build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def build(setup: Setup, device: str, models: Folders) -> Live:
    return compiling.built(build_target, setup, device, models)


def capture(live: Live) -> Any:
    get_flags().capture.enable_torch_compile = True
    return compiling.capture(live)
