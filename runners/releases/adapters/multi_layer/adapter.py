"""The composite of MultiLayerEagleDraftExtendCudaGraphRunner, on the multi-layer draft worker of EAGLE v2."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner import (
    MultiLayerEagleMultiStepDraftExtendCudaGraphRunner,
)
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker

from repro.cases.case import Setup
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from runners.recording.observer import Unsupported
from runners.releases.adapters.draft_extend.adapter import batch_for
from runners.releases.adapters.multi_layer import one_graph
from runners.releases.adapters.multi_layer.family import runners
from runners.releases.catalogue import present_release
from runners.releases.live import Live, Rows
from runners.releases.model import Folders
from runners.releases.options.mimo import ARGUMENTS
from runners.releases.workers.present import server_args, with_draft


def build(setup: Setup, device: str, models: Folders) -> Live:
    since = RUNNER_FACTS["multi_layer"].backend_since.get(setup.backend)
    if since and release_order(present_release()) < release_order(since):
        raise Unsupported(f"before {since} sglang ends no capture of a draft's layers over {setup.backend}")
    arguments = server_args(setup, device, models) | ARGUMENTS
    live = with_draft(setup, device, arguments, MultiLayerEagleDraftWorker, lambda live: list(runners(live)))
    live.draft.init_attention_backend()  # once more, now that it may know that graphs are on
    return live


def capture(live: Live) -> Any:
    kind = one_graph.kind(live) if live.setup.one_graph else MultiLayerEagleMultiStepDraftExtendCudaGraphRunner
    return kind(live.draft)


def batch_of(runner: Any, rows: Rows) -> Any:
    """A batch of one layer, with this layer's model runner."""
    batch = batch_for(runner, rows)
    batch.return_hidden_states_before_norm = True
    return batch
