"""A tiny DeepSeek-V3.2 and its next-token layer: latent attention over the keys that an indexer chooses (DSA)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.options.deepseek import deepseek

# A choice of so many keys is that of all, as contexts are shorter: attention is dense, and ties decide nothing.
CHOSEN = 2048
# Before, kernels take no other number (transform_index.py, 0.5.20:197).
FEWER_SINCE = "0.5.21"
# Before, it runs through more compiled kernels.
SINCE = "0.5.17"
_HEADS, _SIZE = 4, 128


def config(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike."""
    return deepseek(setup) | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_topk": setup.index_topk or CHOSEN,
        "index_n_heads": _HEADS,
        "index_head_dim": _SIZE,
        **({"index_share_for_mtp_iteration": True} if setup.index_share else {}),
    }


def keys_of(pages: torch.Tensor) -> torch.Tensor:
    """The keys of an index cache by KV slot, float32 [slots, size]. pages: bytes [pages, n], in each first its keys, in
    eight bits, and then a scale of each."""
    size, tokens = _SIZE, pages.shape[1] // (_SIZE + 4)
    keys = pages[:, : tokens * size].reshape(-1, size).view(torch.float8_e4m3fn).float()
    return keys * pages[:, tokens * size :].reshape(-1).view(torch.float32)[:, None]


def arguments(known: Container[str]) -> dict[str, Any]:
    """Its keys are chosen by PyTorch, as the kernels that a server chooses them with are compiled CUDA."""
    named = {
        "attention_backend": "dsa",
        "dsa_prefill_backend": "fa3",
        "dsa_decode_backend": "fa3",
        "dsa_topk_backend": "torch",
        "speculative_dsa_topk_backend": "torch",
        "kv_cache_dtype": "bfloat16",
    }
    return {name: value for name, value in named.items() if name in known}
