"""The workers of the sglang that this process imports, whichever generation it is of."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from repro.cases.case import Setup
from repro.cases.layout import pool_tokens
from repro.cases.releases import release_order
from runners.recording.observer import Unsupported
from runners.releases.catalogue import first_releases, latest, module_of, present_release
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.options import sliding
from runners.releases.workers import arguments, building
from runners.releases.workers.building import Generation

SINCE = latest(present_release(), first_releases("workers"), "a worker")
GENERATION: Generation = module_of("workers", SINCE).GENERATION


def server_args(setup: Setup, device: str, models: Folders) -> dict[str, Any]:
    """Keyword arguments of ServerArgs."""
    return arguments.server_args(setup, device, models, spare_rows=GENERATION.spare_rows)


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    """A target alone, which decodes token by token."""
    named = arguments.without_speculation(server_args(setup, device, models))
    return _mapped(building.target_alone(GENERATION, setup, device, named))


def _mapped(live: Live) -> Live:
    """The session, with a slot for each token where sliding layers have KV slots of their own."""
    if live.setup.swa:
        pool = live.target.model_runner.token_to_kv_pool
        if live.setup.family and release_order(present_release()) < release_order("0.5.13"):
            raise Unsupported("before 0.5.13 sliding layers of such families are not followed to their KV slots")
        if not sliding.is_hybrid(pool):
            raise Unsupported("this release makes a pool with sliding layers for a list of models alone")
        sliding.shift(pool, pool_tokens(live.setup) + live.setup.page_size)
    return live


def with_draft(
    setup: Setup,
    device: str,
    parts: Mapping[str, Any],
    kind: Any,
    model_runners: Callable[[Live], list[Any]] = lambda live: [live.draft.draft_runner],
    *,
    target_pool_first: bool = False,
) -> Live:
    """Target and draft, as building.with_draft makes them."""
    return building.with_draft(
        GENERATION, setup, device, parts, kind, model_runners, target_pool_first=target_pool_first
    )


def build(setup: Setup, device: str, models: Folders) -> Live:
    """Target and EAGLE draft worker."""
    if (setup.runner, setup.algorithm) == ("verify", "EAGLE3") and release_order(present_release()) < release_order(
        "0.5.11"
    ):
        # set_eagle3_layers_to_capture() without the draft model's layers, in cuda_graph_runner.py, 0.5.10.post1:648.
        raise Unsupported("before 0.5.11 graphs of EAGLE3's targets keep states of layers that a small target lacks")
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    live = with_draft(setup, device, server_args(setup, device, models), worker.EagleDraftWorker)
    if GENERATION.phased:
        live.draft._rebuild_topk1_chain_buffers()  # sized by the largest bucket
    live.draft.init_attention_backend()  # once more, now that it may know that graphs are on
    return _mapped(live)
