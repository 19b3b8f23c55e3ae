"""sglang 0.5.14 and 0.5.15: construction in phases, buckets in cuda_graph_config."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers import v0_5_10
from runners.releases.workers.v0_5_10 import construct, ranks

NAME = "0.5.14"

_GONE = {"cuda_graph_bs", "cuda_graph_max_bs", "disable_piecewise_cuda_graph"}


def server_args(setup: Setup, device: str, models: Folders) -> dict[str, Any]:
    given = v0_5_10.server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return {name: value for name, value in given.items() if name not in _GONE}


def graphs_on(args: Any, setup: Setup) -> None:
    """As they would have been from the start; the runner itself is built by `capture`."""
    args.disable_cuda_graph = False
    decode = args.cuda_graph_config.decode
    decode.backend, decode.bs, decode.max_bs = Backend.FULL, list(setup.capture_bs), setup.max_bs


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    """A target alone, which decodes token by token."""
    args = ServerArgs(**v0_5_10.without_speculation(server_args(setup, device, models)))
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    target.alloc_memory_pool()
    target.init_attention_backends()
    target.init_cuda_graphs()  # graphs are disabled: this only makes the eager runner
    graphs_on(args, setup)
    target.model_runner.init_attention_backend()  # once more, now that it may know that graphs are on
    return Live(setup=setup, device=device, args=args, target=target, draft=None)


def build(setup: Setup, device: str, models: Folders) -> Live:
    live = in_phases(setup, device, server_args(setup, device, models), EagleDraftWorker)
    live.draft._rebuild_topk1_chain_buffers()  # sized by the largest bucket
    live.draft.init_attention_backend()
    return live


def in_phases(
    setup: Setup, device: str, arguments: dict[str, Any], kind: Any, *, target_pool_first: bool = False
) -> Live:
    """As the scheduler goes about it; graphs are on at the end. kind: the draft worker's. target_pool_first: whether
    it wants the target's pool to be there when it is made."""
    args = ServerArgs(**arguments)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    if target_pool_first:
        target.alloc_memory_pool()
    draft = construct(kind, args, **ranks(), target_worker=target)
    if not target_pool_first:
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
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)
