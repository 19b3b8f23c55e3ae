"""sglang 0.5.16: workers of newer generations."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.releases.cpu_decode import compiling
from runners.releases.cpu_decode.v0_5_14 import batch, eager, graph, neutral
from runners.releases.cpu_decode.v0_5_15 import capture
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.present import build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.16"


def build(setup: Setup, device: str, models: Folders) -> Live:
    return compiling.built(build_target, setup, device, models, init_backend="init_attention_backends")
