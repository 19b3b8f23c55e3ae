"""sglang 0.5.10.post1: one-phase construction, runners that capture in their constructor, pools on the batch.

The function names are those of `live.Adapter`; later modules replace what broke.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

# These two first: imported the other way round, the speculative modules of these releases meet themselves.
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # isort: skip
from sglang.srt.managers.tp_worker import TpModelWorker  # isort: skip
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from repro.case import Setup
from repro.layout import pool_tokens
from runners.releases.live import Drafts, Live, Rows
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
        "speculative_algorithm": "EAGLE",
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


def ranks() -> dict[str, Any]:
    """Rank arguments of a single process."""
    port = 20000 + os.getpid() % 20000
    return {
        "gpu_id": 0,
        "tp_rank": 0,
        "moe_ep_rank": 0,
        "pp_rank": 0,
        "attn_cp_rank": 0,
        "moe_dp_rank": 0,
        "dp_rank": None,
        "nccl_port": port,
    }


def construct(kind: Any, *args: Any, **given: Any) -> Any:
    """Call a constructor with those keyword arguments that it knows."""
    known = inspect.signature(kind.__init__).parameters
    return kind(*args, **{name: value for name, value in given.items() if name in known})


def build(setup: Setup, device: str, models: Folders) -> Live:
    return one_phase(setup, device, server_args(setup, device, models))


def one_phase(setup: Setup, device: str, arguments: dict[str, Any]) -> Live:
    """Constructing the workers also allocates the pools and makes the attention backends."""
    args = ServerArgs(**arguments)
    set_global_server_args_for_scheduler(args)
    target = construct(TpModelWorker, args, **ranks())
    draft = construct(EagleDraftWorker, args, **ranks(), target_worker=target)
    args.disable_cuda_graph = False
    draft.init_attention_backend()  # once more, now that the backend may know that graphs are on
    return Live(setup=setup, device=device, args=args, target=target, draft=draft)


def capture(live: Live) -> Any:
    return EAGLEDraftCudaGraphRunner(live.draft)


def spec_input(rows: Rows) -> Any:
    return EagleDraftInput(
        topk_p=rows.topk_p,
        topk_index=rows.topk_index,
        hidden_states=rows.hidden_states,
        capture_hidden_mode=CaptureHiddenMode.LAST,
    )


def batch_fields(live: Live, rows: Rows) -> dict[str, Any]:
    """What ForwardBatch is made of in every release."""
    lengths = rows.seq_lens.cpu()
    return {
        "forward_mode": ForwardMode.DECODE,
        "batch_size": rows.count,
        "input_ids": None,
        "req_pool_indices": rows.req_pool_indices,
        "seq_lens": rows.seq_lens,
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": rows.out_cache_loc,
        "positions": rows.positions,
        "return_logprob": False,
        "spec_algorithm": live.model_runner.spec_algorithm,
        "spec_info": spec_input(rows),
        "capture_hidden_mode": CaptureHiddenMode.LAST,
    }


def batch(live: Live, rows: Rows) -> Any:
    runner = live.model_runner
    return ForwardBatch(
        **batch_fields(live, rows),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )


def drafts(returned: Any) -> Drafts:
    parents, scores_index, tokens = returned[:3]
    return Drafts(parents=parents, scores_index=scores_index, tokens=tokens)


def graph(runner: Any, forward_batch: Any) -> Drafts:
    if not runner.can_run(forward_batch):
        raise RuntimeError(f"can_run refused a batch of {forward_batch.batch_size}")
    return drafts(runner.replay(forward_batch))


def eager(live: Live, forward_batch: Any) -> Drafts:
    live.backend.init_forward_metadata(forward_batch)
    return drafts(live.draft.draft_forward(forward_batch))


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": live.backend.attn_backends[0].get_cuda_graph_seq_len_fill_value()}
