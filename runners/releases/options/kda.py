"""A tiny Kimi-Linear: a layer of linear attention (KDA), whose state lies beside the KV cache, and one of latent
attention."""

from __future__ import annotations

from typing import Any

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from runners.releases import model


def kda(setup: Setup) -> dict[str, Any]:
    """The configuration of the target; a Llama drafts for it."""
    latent, rotary = BACKEND_FACTS[setup.backend].latent_dims
    return model.llama(setup) | {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": 2,
        "kv_lora_rank": latent,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": rotary,
        "v_head_dim": 16,
        "mla_use_nope": True,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 2,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 2,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 64,
    }
