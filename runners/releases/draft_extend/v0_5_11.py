"""sglang 0.5.11: counts called num_accepted_tokens and num_accepted_drafts, other workers."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.eagle_info import EagleDraftInput

from repro.cases.case import Setup
from runners.releases.draft_extend.v0_5_10 import (
    capture,
    eager,
    graph,
    neutral,
    refuse_branches,
    spec_input,
    with_pools,
)
from runners.releases.live import Live, Rows
from runners.releases.model import Folders
from runners.releases.workers import v0_5_11
from runners.releases.workers.v0_5_11 import NAME

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]


def build(setup: Setup, device: str, models: Folders) -> Live:
    refuse_branches(setup)
    return v0_5_11.build(setup, device, models)


def batch(live: Live, rows: Rows) -> Any:
    return with_pools(live, rows, spec_input(EagleDraftInput, rows, "num_accepted_tokens", "num_accepted_drafts"))
