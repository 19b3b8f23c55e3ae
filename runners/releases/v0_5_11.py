"""sglang 0.5.11 and 0.5.12: row 0 of the request pool is reserved for padding."""

from __future__ import annotations

from repro.case import Setup
from runners.releases import v0_5_10
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.v0_5_10 import batch, capture, eager, graph, neutral

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.11"


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = v0_5_10.server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return v0_5_10.one_phase(setup, device, arguments)
