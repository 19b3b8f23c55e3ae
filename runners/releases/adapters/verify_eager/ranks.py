"""The counts that parallel layers get for all ranks once a batch is padded: tokens of each, and the room that the
buffers need in which they are gathered."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import dp_attention

# Of the batch: one entry a rank.
_OF_THE_BATCH = ("global_num_tokens_cpu", "global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu")
# What layers ask, and what they are told it by.
_ASKED = {
    "gathered": "get_global_dp_buffer_len",
    "own": "get_local_dp_buffer_len",
    "each": "get_dp_global_num_tokens",
    "padded to the busiest": "is_dp_max_padding",
}


def ranks_told(batch: Any) -> dict[str, list[int]]:
    """The numbers by name; what this release does not have, or does not set, is left out."""
    numbers = {name: getattr(batch, name, None) for name in _OF_THE_BATCH}
    numbers["global_dp_buffer_len"] = getattr(batch, "global_dp_buffer_len", None)
    if hasattr(batch, "dp_padding_mode"):
        # As the batch itself says it, by which layers gather; of one that says nothing, what is no answer.
        mode = batch.dp_padding_mode
        numbers["batch padded to the busiest"] = -1 if mode is None else mode.is_max_len()
    numbers |= {name: getattr(dp_attention, rank)() for name, rank in _ASKED.items() if hasattr(dp_attention, rank)}
    return {name: _numbers(value) for name, value in numbers.items() if value is not None}


def _numbers(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return [int(entry) for entry in value] if isinstance(value, list | tuple) else [int(value)]
