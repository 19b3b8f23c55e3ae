"""sglang 0.5.14 and 0.5.15: a draft worker beside others, built in phases; can_run_graph/execute."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker

from repro.case import Setup
from runners.releases.draft.v0_5_14 import graph
from runners.releases.frozen_kv_mtp.every import batch_fields, bind, capture, eager, neutral, pools
from runners.releases.live import Live, Rows
from runners.releases.model import Folders
from runners.releases.workers import v0_5_14
from runners.releases.workers.v0_5_10 import construct, ranks

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.14"


def build(setup: Setup, device: str, models: Folders) -> Live:
    args = ServerArgs(**(v0_5_14.server_args(setup, device, models) | pools(setup)))
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    target.alloc_memory_pool()  # 0.5.14 wants it to be there when the draft worker is made
    draft = construct(FrozenKVMTPDraftWorker, args, **ranks(), target_worker=target)
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
    v0_5_14.graphs_on(args, setup)
    bind(setup, target)
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**batch_fields(live, rows))
