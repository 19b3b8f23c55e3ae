"""sglang 0.5.21: the scheduler makes the process groups itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from runners.releases.adapters.round.ranks import rank_of
from runners.releases.workers.bags import ROLE


def published(arguments: Mapping[str, Any]) -> Any:
    args = ServerArgs(**arguments)
    publish(args, role=ROLE, ranks=SpawnRanks(world_rank=rank_of(args), gpu_id=0))
    return args
