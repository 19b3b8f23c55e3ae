"""sglang 0.5.16: ranks in one object, and a target's attention backends in the plural."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.distributed.parallel_state_wrapper import ParallelState
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from runners.releases.workers import v0_5_10, v0_5_14
from runners.releases.workers.phased import Generation


def published(arguments: Mapping[str, Any]) -> Any:
    args = ServerArgs(**arguments)
    set_global_server_args_for_scheduler(args)
    return args


def ranks() -> dict[str, Any]:
    return v0_5_10.ranks() | {"ps": ParallelState.trivial()}


GENERATION = Generation(name="0.5.16", published=published, ranks=ranks, graphs_on=v0_5_14.graphs_on)
