"""The graphs of sglang's phases, since 0.5.14 in cuda_graph_config."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend

from repro.cases.case import Setup
from repro.cases.rows.serving import FULL, prefill_buckets


def switch_on(config: Any, setup: Setup) -> None:
    """config: with a phase `decode` and a phase `prefill`, which is left as it is without buckets."""
    config.decode.backend, config.decode.bs, config.decode.max_bs = Backend.FULL, list(setup.capture_bs), setup.max_bs
    if buckets := prefill_buckets(setup):
        config.prefill.backend, config.prefill.bs, config.prefill.max_bs = setup.prefill_backend, buckets, max(buckets)
        if setup.prefill_backend == FULL:
            config.prefill.full_prefill_max_req = setup.max_bs
