"""sglang 0.5.21: ranks are published with the arguments, and process groups are made before any worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.bootstrap import init_layer_runtime, init_parallel_runtime
from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from runners.releases.workers.arguments import ranks
from runners.releases.workers.bags import ROLE, graphs_on
from runners.releases.workers.building import Generation


def published(arguments: Mapping[str, Any]) -> Any:
    """Once in a process: sglang refuses to make the groups again."""
    args = ServerArgs(**arguments)
    publish(args, role=ROLE, ranks=SpawnRanks(world_rank=0, gpu_id=0))
    init_parallel_runtime(server_args=args, device=arguments["device"], dist_port=ranks()["nccl_port"])
    init_layer_runtime(model_config=ModelConfig.from_server_args(args))
    return args


GENERATION = Generation(
    published=published,
    ranks=ranks,
    graphs_on=graphs_on,
    phased=True,
    shared_output=GraphSharedOutput.create_for_model_runner,
)
