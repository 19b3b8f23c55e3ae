"""sglang 0.5.14: construction in phases, buckets in cuda_graph_config."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases.workers.arguments import ranks
from runners.releases.workers.building import Generation
from runners.releases.workers.phases import switch_on
from runners.releases.workers.v0_5_10 import published


def graphs_on(args: Any, setup: Setup) -> None:
    """Switch graphs on as they would have been from the start; the runner itself is built by `capture`."""
    args.disable_cuda_graph = False
    switch_on(args.cuda_graph_config, setup)


GENERATION = Generation(published=published, ranks=ranks, graphs_on=graphs_on, phased=True)
