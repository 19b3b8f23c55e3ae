"""The target's runner, one token a request: CudaGraphRunner, since 0.5.14 DecodeCudaGraphRunner."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

from runners.releases.adapters.decode.family import FAMILY, backend
from runners.releases.forward_pass import forward_batch, replayed
from runners.releases.live import RETURNED, Live, Outputs, Rows
from runners.releases.options import recurrent
from runners.releases.workers import present

_NEW = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
_OLD = "sglang.srt.model_executor.cuda_graph_runner"

build = present.build_target


def runner_class() -> Any:
    """The class of the target's runner."""
    if importlib.util.find_spec(_NEW.rpartition(".")[0]):
        return importlib.import_module(_NEW).DecodeCudaGraphRunner
    return importlib.import_module(_OLD).CudaGraphRunner


def capture(live: Live) -> Any:
    return runner_class()(FAMILY.model_runner(live))


def batch(live: Live, rows: Rows) -> Any:
    runner = FAMILY.model_runner(live)
    lengths = rows["seq_lens"].cpu()
    fields = {
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
        "spec_algorithm": runner.spec_algorithm,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
    }
    return forward_batch(runner, fields | recurrent.kept(live.setup, runner, rows))


def logits(returned: Any) -> Outputs:
    """returned_hidden_states: where there are any, asked for or not."""
    hidden = returned.hidden_states
    return {"logits": returned.next_token_logits} | ({} if hidden is None else {RETURNED: hidden})


def graph(runner: Any, batch: Any) -> Outputs:
    return logits(replayed(runner, batch))


def eager(live: Live, batch: Any) -> Outputs:
    """Run the batch as the scheduler would; the target itself has no graph runner."""
    return logits(FAMILY.model_runner(live).forward(batch).logits_output)


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cuda_graph_seq_len_fill_value()}
