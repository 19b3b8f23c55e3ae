"""sglang 0.5.15: the graphs' logits in one buffer, which is made only where graphs are on from the start."""

from __future__ import annotations

from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput

from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers import v0_5_14

NAME = "0.5.15"


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    return _sharing(v0_5_14.build_target(setup, device, models))


def build(setup: Setup, device: str, models: Folders) -> Live:
    return _sharing(v0_5_14.build(setup, device, models))


def _sharing(live: Live) -> Live:
    """Both workers' runners share it, as they would have from the start."""
    runners = [live.target.model_runner] + ([live.draft.draft_runner] if live.draft else [])
    for runner in runners:
        runner.graph_shared_output = GraphSharedOutput.create_for_model_runner(runner)
    return live
