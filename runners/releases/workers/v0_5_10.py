"""sglang 0.5.10.post1: one-phase construction, and a request pool whose row 0 is an ordinary row."""

from __future__ import annotations

import functools
import inspect
import os
import socket
from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from repro.cases.case import Setup
from repro.cases.layout import pool_tokens
from runners.releases.live import Live
from runners.releases.model import Folders

NAME = "0.5.10"


def server_args(setup: Setup, device: str, models: Folders) -> dict[str, Any]:
    """Keyword arguments of ServerArgs. Graphs are off while the workers are built: the runner is built by `capture`."""
    return {
        "model_path": str(models.target),
        "speculative_draft_model_path": str(models.draft),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": device,
        "dtype": setup.dtype,
        "attention_backend": setup.backend,
        "sampling_backend": "pytorch",
        "speculative_algorithm": setup.algorithm,
        "speculative_num_steps": setup.num_steps,
        "speculative_eagle_topk": setup.topk,
        "speculative_num_draft_tokens": setup.num_draft_tokens,
        "page_size": setup.page_size,
        "context_length": setup.context_len,
        "max_total_tokens": pool_tokens(setup),
        # Row 0 of this release's request pool is an ordinary row; one more leaves 1..slots for requests.
        "max_running_requests": setup.slots + 1,
        "mem_fraction_static": 0.5,
        "triton_attention_num_kv_splits": setup.kv_splits,
        "disable_radix_cache": True,
        "disable_cuda_graph": True,
        "disable_piecewise_cuda_graph": True,
        "random_seed": 1,
        "cuda_graph_bs": list(setup.capture_bs),
        "cuda_graph_max_bs": setup.max_bs,
    }


@functools.cache
def _own_port(process: int) -> int:
    """A port that nobody listens on now: any fixed rule would give two of many processes the same. One for both workers
    of a process, which join one group; another one after a fork."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ranks() -> dict[str, Any]:
    """Rank arguments of a single process."""
    return {
        "gpu_id": 0,
        "tp_rank": 0,
        "moe_ep_rank": 0,
        "pp_rank": 0,
        "attn_cp_rank": 0,
        "moe_dp_rank": 0,
        "dp_rank": None,
        "nccl_port": _own_port(os.getpid()),
    }


def construct(kind: Any, *args: Any, **given: Any) -> Any:
    """Call a constructor with those keyword arguments that it knows."""
    known = inspect.signature(kind.__init__).parameters
    return kind(*args, **{name: value for name, value in given.items() if name in known})


def build(setup: Setup, device: str, models: Folders) -> Live:
    return one_phase(setup, device, server_args(setup, device, models))


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    return target_in_one_phase(setup, device, server_args(setup, device, models))


def without_speculation(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not name.startswith("speculative_")}


def target_in_one_phase(setup: Setup, device: str, arguments: dict[str, Any]) -> Live:
    """A target alone, which decodes token by token."""
    args = ServerArgs(**without_speculation(arguments))
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    args.disable_cuda_graph = False
    target.model_runner.init_attention_backend()  # once more, now that it may know that graphs are on
    return Live(setup=setup, device=device, args=args, target=target, draft=None)


def one_phase(setup: Setup, device: str, arguments: dict[str, Any], kind: Any = EagleDraftWorker) -> Live:
    """Constructing the workers also allocates the pools and makes the attention backends. kind: the draft worker's."""
    args = ServerArgs(**arguments)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(kind, args, **ranks(), target_worker=target)
    args.disable_cuda_graph = False
    draft.init_attention_backend()  # once more, now that the backend may know that graphs are on
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)
