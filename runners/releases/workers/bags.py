"""Since 0.5.17 what a process goes by are bags that are made of the published arguments."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_exec

from repro.cases.case import Setup
from runners.releases.workers.phases import switch_on

# What the process of a worker is published as.
ROLE = "scheduler"


def graphs_on(args: Any, setup: Setup) -> None:
    """Its phases are plain objects."""
    switch_on(get_exec().graph.cuda_graph_config, setup)
