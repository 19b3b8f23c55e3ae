"""A tiny DeepSeek-V3.2 and its next-token layer: latent attention over the keys that an indexer chooses (DSA)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from repro.cases.case import Setup
from runners.releases.options.deepseek import deepseek

# A choice of so many keys is that of all, as contexts are shorter: attention is dense, and ties decide nothing. Up to
# 0.5.20 kernels take no other number.
CHOSEN = 2048
# Before, it runs through more compiled kernels.
SINCE = "0.5.17"
_HEADS, _SIZE = 4, 128


def config(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike."""
    return deepseek(setup) | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_topk": CHOSEN,
        "index_n_heads": _HEADS,
        "index_head_dim": _SIZE,
    }


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
