"""sglang 0.5.18: nothing is read off the published arguments any more."""

from __future__ import annotations

from sglang.srt.runtime_context import get_context

from repro.cases.case import Setup
from runners.releases.cpu_decode import compiling
from runners.releases.cpu_decode.v0_5_14 import batch, eager, graph, neutral
from runners.releases.cpu_decode.v0_5_17 import capture
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.present import build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.18"


def in_context(live: Live) -> None:
    get_context().override("eagleeye", attention_backend=live.setup.backend)


def build(setup: Setup, device: str, models: Folders) -> Live:
    return compiling.built(build_target, setup, device, models, in_context, "init_attention_backends")
