"""sglang 0.5.14 and 0.5.15: construction in phases, buckets in cuda_graph_config, can_run_graph/execute."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from repro.case import Setup
from runners.releases import v0_5_10
from runners.releases.live import Drafts, Live
from runners.releases.model import Folders
from runners.releases.v0_5_10 import capture, construct, drafts, neutral, ranks
from runners.releases.v0_5_13 import batch, eager

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.14"

_GONE = {"cuda_graph_bs", "cuda_graph_max_bs", "disable_piecewise_cuda_graph"}


def build(setup: Setup, device: str, models: Folders) -> Live:
    given = v0_5_10.server_args(setup, device, models) | {"max_running_requests": setup.slots}
    args = ServerArgs(**{name: value for name, value in given.items() if name not in _GONE})
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(EagleDraftWorker, args, **ranks(), target_worker=target)
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
    args.disable_cuda_graph = False
    decode = args.cuda_graph_config.decode
    decode.backend, decode.bs, decode.max_bs = Backend.FULL, list(setup.capture_bs), setup.max_bs
    draft._rebuild_topk1_chain_buffers()  # sized by the largest bucket
    draft.init_attention_backend()
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)


def graph(runner: Any, forward_batch: Any) -> Drafts:
    if not runner.can_run_graph(forward_batch):
        raise RuntimeError(f"can_run_graph refused a batch of {forward_batch.batch_size}")
    return drafts(runner.execute(forward_batch))
