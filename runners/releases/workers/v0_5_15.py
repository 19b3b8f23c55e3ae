"""sglang 0.5.15: the graphs' logits in one buffer."""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput

from runners.releases.workers import v0_5_14

GENERATION = replace(v0_5_14.GENERATION, shared_output=GraphSharedOutput.create_for_model_runner)
