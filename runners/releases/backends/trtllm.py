"""sglang's backends over TensorRT-LLM's kernels: which calls of these its graphs hold."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runners.engines.standins import trtllm
from runners.releases.backends.paged_calls import Call, calls

# A module that has imported the stand-ins.
_CALLER = "sglang.srt.layers.attention.trtllm_mha_backend"


@functools.cache
def listen() -> None:
    """Note what this session's graphs will hold: to be called before any attention backend is made."""
    flashinfer: Any = importlib.import_module(_CALLER).flashinfer
    for module, kernel, read in (
        (flashinfer.decode, trtllm.trtllm_batch_decode_with_kv_cache, _read),
        (flashinfer.prefill, trtllm.trtllm_batch_context_with_kv_cache, _read),
        (flashinfer.decode, trtllm.trtllm_batch_decode_with_kv_cache_mla, _read_latent),
    ):
        setattr(module, kernel.__name__, calls.listened(kernel, read))


def _read(arguments: Mapping[str, Any]) -> tuple[int, Call]:
    query, starts, left = arguments["query"], arguments["cum_seq_lens_q"], arguments["window_left"]
    if starts is None:
        starts = _equal_starts(len(query), arguments["q_len_per_req"])
    return len(query), Call(
        page_table=arguments["block_tables"],
        lengths=arguments["seq_lens"],
        query_starts=starts,
        page_size=arguments["kv_cache"][0].shape[2],
        causal=arguments.get("causal", True),
        window=(left, 0 if left >= 0 else -1),
        is_part=False,
    )


def _read_latent(arguments: Mapping[str, Any]) -> tuple[int, Call]:
    sequences, each = arguments["query"].shape[:2]
    return sequences * each, Call(
        page_table=arguments["block_tables"],
        lengths=arguments["seq_lens"],
        query_starts=_equal_starts(sequences * each, each),
        page_size=arguments["kv_cache"].shape[-2],
        causal=True,
        window=(-1, -1),
        is_part=False,
    )


def _equal_starts(queries: int, each: int) -> torch.Tensor:
    """Query starts of sequences with equally many queries, in memory that no graph being captured takes for its own."""
    return torch.from_numpy(np.arange(0, queries + 1, each, dtype=np.int32))
