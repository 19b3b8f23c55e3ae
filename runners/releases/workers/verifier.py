"""The worker that verifies what a draft worker drafted, constructed by sglang over workers that are there already."""

from __future__ import annotations

import sys
from typing import Any

from runners.engines.standins import draft_worker
from runners.releases.live import Live
from runners.releases.workers import present
from runners.releases.workers.arguments import construct

# What a worker makes its draft worker of.
DRAFTING = {"EAGLEWorkerV2": "EagleDraftWorker", "MultiLayerEagleWorkerV2": "MultiLayerEagleDraftWorker"}


def verifier(live: Live, kind: Any) -> Any:
    """One of this class. The draft worker that it would construct is there already, and a multi-layer one's is that of
    a single layer: verify asks it for nothing."""
    module: Any = sys.modules[kind.__module__]
    drafting = DRAFTING[kind.__name__]
    draft_class = getattr(module, drafting)
    ranks = present.GENERATION.ranks()
    setattr(module, drafting, draft_worker.constructor(draft_class, live.draft, ranks))
    try:
        made = construct(kind, live.args, **ranks, target_worker=live.target)
    finally:
        setattr(module, drafting, draft_class)
    # Where construction is in phases, the pools come later.
    pools = zip(("req_to_token_pool", "token_to_kv_pool_allocator"), live.target.get_memory_pool(), strict=True)
    for name, pool in pools:
        if name not in vars(made):
            setattr(made, name, pool)
    assert made.draft_worker is live.draft  # by the property that a scheduler asks
    return made
