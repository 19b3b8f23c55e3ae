"""What is the same in every sglang that has the frozen-KV runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner import FrozenKVMTPCudaGraphRunner
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

from repro.cases.case import Setup
from repro.cases.layout import pool_tokens
from runners.releases import model
from runners.releases.draft.v0_5_10 import drafts
from runners.releases.frozen_kv_mtp.family import FAMILY, backend, shift
from runners.releases.live import Live, Outputs, Rows


def pools(setup: Setup) -> dict[str, Any]:
    """As many KV slots for sliding layers as for full ones, and a page more than requests own."""
    return {"swa_full_tokens_ratio": 1.0, "max_total_tokens": pool_tokens(setup) + setup.page_size}


def bind(setup: Setup, target: Any) -> None:
    """The assistant takes the target's embeddings and reads its KV cache."""
    model.fill_weights(target.model_runner.model)
    shift(target.model_runner.token_to_kv_pool, pool_tokens(setup) + setup.page_size)


def capture(live: Live) -> Any:
    return FrozenKVMTPCudaGraphRunner(live.draft)


def spec_input(rows: Rows, topk: int) -> Any:
    made = FrozenKVMTPDraftInput(
        topk_p=rows["topk_p"],
        topk_index=rows["topk_index"],
        hidden_states=rows["hidden_states"],
        bonus_tokens=rows["bonus_tokens"],
        capture_hidden_mode=CaptureHiddenMode.LAST,
    )
    made.num_tokens_per_req = made.num_tokens_for_logprob_per_req = topk
    return made


def batch_fields(live: Live, rows: Rows) -> dict[str, Any]:
    """What ForwardBatch is made of: the batch after its expansion by topk."""
    lengths = rows["seq_lens"].cpu()
    return {
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
        "spec_algorithm": FAMILY.model_runner(live).spec_algorithm,
        "spec_info": spec_input(rows, live.setup.topk),
        "capture_hidden_mode": CaptureHiddenMode.LAST,
    }


def eager(live: Live, forward_batch: Any) -> Outputs:
    return drafts(live.draft.draft_forward(forward_batch))


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cuda_graph_seq_len_fill_value()}
