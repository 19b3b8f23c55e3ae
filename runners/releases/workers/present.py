"""The workers of the sglang that this process imports, for adapters that outlive several generations of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from repro.cases.case import Setup
from runners.releases.catalogue import WORKERS, latest, module_of, present_release
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers import phased, v0_5_14
from runners.releases.workers.phased import Generation

GENERATION: Generation = module_of("workers", latest(present_release(), WORKERS, "a worker")).GENERATION
server_args = v0_5_14.server_args


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    """A target alone, which decodes token by token."""
    return phased.target_alone(GENERATION, setup, device, models)


def in_phases(
    setup: Setup,
    device: str,
    arguments: Mapping[str, Any],
    kind: Any,
    model_runners: Callable[[Live], list[Any]] = lambda live: [live.draft.draft_runner],
) -> Live:
    """Target and draft. kind: the draft worker's; model_runners: those of the draft."""
    return phased.in_phases(GENERATION, setup, device, arguments, kind, model_runners)


def build(setup: Setup, device: str, models: Folders) -> Live:
    """Target and EAGLE draft worker."""
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    live = in_phases(setup, device, server_args(setup, device, models), worker.EagleDraftWorker)
    live.draft._rebuild_topk1_chain_buffers()  # sized by the largest bucket
    live.draft.init_attention_backend()
    return live
