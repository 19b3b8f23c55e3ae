"""What is the same in every release: the batch's fields, the eager pass, what padded rows hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from runners.releases.decode.family import FAMILY, backend
from runners.releases.live import Live, Outputs, Rows


def fields(live: Live, rows: Rows) -> dict[str, Any]:
    lengths = rows["seq_lens"].cpu()
    return {
        "forward_mode": ForwardMode.DECODE,
        "batch_size": rows.count,
        "input_ids": rows["input_ids"],
        "req_pool_indices": rows["req_pool_indices"],
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": rows["out_cache_loc"],
        "positions": rows["positions"],
        "return_logprob": False,
        "spec_algorithm": FAMILY.model_runner(live).spec_algorithm,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
    }


def batch_with_pools(live: Live, rows: Rows) -> Any:
    """Up to 0.5.12."""
    runner = FAMILY.model_runner(live)
    return ForwardBatch(
        **fields(live, rows),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )


def batch(live: Live, rows: Rows) -> Any:
    """From 0.5.13 on."""
    return ForwardBatch(**fields(live, rows))


def logits(returned: Any) -> Outputs:
    return {"logits": returned.next_token_logits}


def eager(live: Live, forward_batch: Any) -> Outputs:
    """As the scheduler would; the target itself has no graph runner."""
    return logits(FAMILY.model_runner(live).forward(forward_batch).logits_output)


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cuda_graph_seq_len_fill_value()}
