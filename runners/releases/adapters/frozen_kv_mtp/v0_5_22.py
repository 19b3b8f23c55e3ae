"""sglang 0.5.22, with Transformers 5.19: full layers have a size of heads of their own, unless it is said that it is
the same."""

from __future__ import annotations

from dataclasses import replace

from runners.releases.adapters.frozen_kv_mtp import family
from runners.releases.options import gemma4

FAMILY = replace(
    family.FAMILY,
    configs=lambda setup: (
        gemma4.target(setup) | {"global_head_dim": gemma4.target(setup)["head_dim"]},
        gemma4.assistant(setup),
    ),
)
