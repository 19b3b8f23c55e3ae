"""sglang 0.5.16: ranks in one object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang.srt.distributed.parallel_state_wrapper import ParallelState

from runners.releases.workers import arguments, v0_5_15


def ranks() -> dict[str, Any]:
    return arguments.ranks() | {"ps": ParallelState.trivial()}


GENERATION = replace(v0_5_15.GENERATION, ranks=ranks)
