"""sglang 0.5.10: as 0.5.11, but that every layer's attention is FlashAttention 3's, whatever the server is told."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.recording.observer import Unsupported
from runners.releases.adapters.multi_layer import adapter
from runners.releases.adapters.multi_layer.v0_5_11 import FAMILY, batch, capture, eager, graph
from runners.releases.live import Live
from runners.releases.model import Folders

__all__ = ["FAMILY", "batch", "build", "capture", "eager", "graph"]


def build(setup: Setup, device: str, models: Folders) -> Live:
    if setup.backend != "fa3":
        raise Unsupported("before 0.5.11 sglang makes FlashAttention 3's backend for every layer of the draft")
    return adapter.build(setup, device, models)
