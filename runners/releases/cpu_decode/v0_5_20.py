"""sglang 0.5.20: sgl_kernel's attention for CPUs takes scales of keys and values."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.engines.standins import amx
from runners.releases.cpu_decode import v0_5_18
from runners.releases.cpu_decode.v0_5_14 import batch, eager, graph, neutral
from runners.releases.cpu_decode.v0_5_17 import capture
from runners.releases.live import Live
from runners.releases.model import Folders

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.20"


def build(setup: Setup, device: str, models: Folders) -> Live:
    amx.define(scaled=True)
    return v0_5_18.build(setup, device, models)
