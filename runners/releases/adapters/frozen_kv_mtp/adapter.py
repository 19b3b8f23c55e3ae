"""FrozenKVMTPCudaGraphRunner on the frozen-KV worker, since 0.5.14 a draft worker beside others."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner import FrozenKVMTPCudaGraphRunner
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

from repro.cases.case import Setup
from repro.cases.layout import pool_tokens
from runners.releases import model
from runners.releases.adapters.draft.adapter import drafts
from runners.releases.adapters.frozen_kv_mtp.family import FAMILY, backend
from runners.releases.forward_pass import forward_batch, replayed
from runners.releases.live import Live, Outputs, Rows
from runners.releases.model import Folders
from runners.releases.options import sliding
from runners.releases.workers.present import GENERATION, server_args, with_draft


def pools(setup: Setup) -> dict[str, Any]:
    """The pools: as many KV slots for sliding layers as for full ones, and a page more than requests own."""
    return {"swa_full_tokens_ratio": 1.0, "max_total_tokens": pool_tokens(setup) + setup.page_size}


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = server_args(setup, device, models) | pools(setup)
    live = with_draft(
        setup, device, arguments, worker_class(), lambda live: [FAMILY.model_runner(live)], target_pool_first=True
    )
    bind(setup, live.target)
    return live


def worker_class() -> Any:
    if GENERATION.phased:
        return importlib.import_module("sglang.srt.speculative.frozen_kv_mtp_worker_v2").FrozenKVMTPDraftWorker
    return importlib.import_module("sglang.srt.speculative.frozen_kv_mtp_worker").FrozenKVMTPWorker


def bind(setup: Setup, target: Any) -> None:
    """The assistant takes the target's embeddings and reads its KV cache."""
    model.fill_weights(target.model_runner.model)
    sliding.shift(target.model_runner.token_to_kv_pool, pool_tokens(setup) + setup.page_size)


def capture(live: Live) -> Any:
    return FrozenKVMTPCudaGraphRunner(live.draft)


def spec_input(rows: Rows, topk: int) -> Any:
    draft_input = FrozenKVMTPDraftInput(
        topk_p=rows["topk_p"],
        topk_index=rows["topk_index"],
        hidden_states=rows["hidden_states"],
        bonus_tokens=rows["bonus_tokens"],
        capture_hidden_mode=CaptureHiddenMode.LAST,
    )
    draft_input.num_tokens_per_req = draft_input.num_tokens_for_logprob_per_req = topk
    return draft_input


def batch(live: Live, rows: Rows) -> Any:
    """The batch after its expansion by topk."""
    runner = FAMILY.model_runner(live)
    lengths = rows["seq_lens"].cpu()
    fields = {
        "forward_mode": ForwardMode.DECODE,
        "batch_size": len(lengths),
        "input_ids": None,
        "req_pool_indices": rows["req_pool_indices"],
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": None,
        "positions": rows["positions"],
        "return_logprob": False,
        "spec_algorithm": runner.spec_algorithm,
        "spec_info": spec_input(rows, live.setup.topk),
        "capture_hidden_mode": CaptureHiddenMode.LAST,
    }
    return forward_batch(runner, fields)


def graph(runner: Any, batch: Any) -> Outputs:
    return drafts(replayed(runner, batch))


def eager(live: Live, batch: Any) -> Outputs:
    return drafts(live.draft.draft_forward(batch))


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cuda_graph_seq_len_fill_value()}
