"""sglang 0.5.14: construction in phases, buckets in cuda_graph_config."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend

from repro.cases.case import Setup
from runners.releases.workers.arguments import ranks
from runners.releases.workers.building import Generation
from runners.releases.workers.v0_5_10 import published


def graphs_on(args: Any, setup: Setup) -> None:
    """Switch graphs on as they would have been from the start; the runner itself is built by `capture`."""
    args.disable_cuda_graph = False
    decode = args.cuda_graph_config.decode
    decode.backend, decode.bs, decode.max_bs = Backend.FULL, list(setup.capture_bs), setup.max_bs


GENERATION = Generation(published=published, ranks=ranks, graphs_on=graphs_on, phased=True)
