"""sglang 0.5.12: a worker of its own, which hands the first drafts over with the batch."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker

from repro.cases.case import Setup
from runners.releases.draft.v0_5_10 import graph
from runners.releases.frozen_kv_mtp.every import batch_fields, bind, capture, eager, neutral, pools
from runners.releases.frozen_kv_mtp.family import FAMILY
from runners.releases.live import Live, Rows
from runners.releases.model import Folders
from runners.releases.workers.v0_5_10 import construct, ranks, server_args

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.12"


def build(setup: Setup, device: str, models: Folders) -> Live:
    given = server_args(setup, device, models) | {"max_running_requests": setup.slots} | pools(setup)
    args = ServerArgs(**given)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(FrozenKVMTPWorker, args, **ranks(), target_worker=target)
    args.disable_cuda_graph = False
    bind(setup, target)
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)


def batch(live: Live, rows: Rows) -> Any:
    runner = FAMILY.model_runner(live)
    return ForwardBatch(
        **batch_fields(live, rows),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )
