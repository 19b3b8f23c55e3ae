"""sglang 0.5.17: arguments are read-only once they are published; what counts is the runtime's context."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_context, get_flags

from repro.cases.case import Setup
from runners.releases.cpu_decode import compiling
from runners.releases.cpu_decode.v0_5_14 import batch, eager, graph, neutral
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers.present import build_target

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.17"


def in_context(live: Live) -> None:
    """Also on the published record: this release's model runner still reads that."""
    get_context().override("eagleeye", attention_backend=live.setup.backend)
    object.__setattr__(live.args, "attention_backend", live.setup.backend)


def build(setup: Setup, device: str, models: Folders) -> Live:
    return compiling.built(build_target, setup, device, models, in_context, "init_attention_backends")


def capture(live: Live) -> Any:
    get_flags().capture.enable_torch_compile = True
    return compiling.compiled(live)
