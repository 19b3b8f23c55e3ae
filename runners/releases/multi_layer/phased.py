"""Construction in phases, since 0.5.14."""

from __future__ import annotations

from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker

from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.multi_layer.family import ARGUMENTS
from runners.releases.workers.v0_5_14 import in_phases, server_args


def build(setup: Setup, device: str, models: Folders) -> Live:
    live = in_phases(setup, device, server_args(setup, device, models) | ARGUMENTS, MultiLayerEagleDraftWorker)
    live.draft.init_attention_backend()  # once more, now that it may know that graphs are on
    return live
