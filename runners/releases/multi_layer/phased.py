"""Construction in phases, since 0.5.14."""

from __future__ import annotations

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker

from repro.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.multi_layer.family import ARGUMENTS
from runners.releases.workers.v0_5_10 import construct, ranks
from runners.releases.workers.v0_5_14 import graphs_on, server_args


def build(setup: Setup, device: str, models: Folders) -> Live:
    args = ServerArgs(**server_args(setup, device, models), **ARGUMENTS)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(MultiLayerEagleDraftWorker, args, **ranks(), target_worker=target)
    target.alloc_memory_pool()
    requests, tokens = target.get_memory_pool()
    draft.alloc_memory_pool(
        memory_pool_config=target.model_runner.memory_pool_config,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=tokens,
    )
    for worker in (target, draft):
        worker.init_attention_backends()
    for worker in (target, draft):
        worker.init_cuda_graphs()  # graphs are disabled: this only makes the eager runners
    graphs_on(args, setup)
    draft.init_attention_backend()  # once more, now that it may know that graphs are on
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)
