"""sglang 0.5.12: counts called num_accept_tokens and num_correct_drafts."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.eagle_info import EagleDraftInput

from runners.releases.draft_extend.v0_5_10 import capture, eager, graph, neutral, spec_input, with_pools
from runners.releases.draft_extend.v0_5_11 import build
from runners.releases.live import Live, Rows

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.12"


def batch(live: Live, rows: Rows) -> Any:
    return with_pools(live, rows, spec_input(EagleDraftInput, rows, "num_accept_tokens", "num_correct_drafts"))
