"""Since 0.5.17 what a process goes by are bags that are made of the published arguments."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.runtime_context import get_exec

from repro.cases.case import Setup

# What the process of a worker is published as.
ROLE = "scheduler"


def graphs_on(args: Any, setup: Setup) -> None:
    """Its phases are plain objects."""
    decode = get_exec().graph.cuda_graph_config.decode
    decode.backend, decode.bs, decode.max_bs = Backend.FULL, list(setup.capture_bs), setup.max_bs
