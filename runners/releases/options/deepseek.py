"""A tiny DeepSeek-V3 and its next-token layer (MTP): latent attention, and experts in the draft model."""

from __future__ import annotations

from typing import Any

import torch

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from runners.releases import model

QUERY_LATENT = 32
# Those of the next-token layer, in GLM's models, too.
EXPERTS = {
    "first_k_dense_replace": 1,
    # Multiples of what sglang pads these two to on a CPU.
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}


def deepseek(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role."""
    latent, rotary = BACKEND_FACTS[setup.backend].latent_dims
    return model.dimensions(setup) | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 1,
        **EXPERTS,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_key_value_heads": setup.num_heads,
        "q_lora_rank": QUERY_LATENT,
        "kv_lora_rank": latent,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": setup.head_dim,
        "v_head_dim": setup.head_dim,
        # On a CPU sglang knows this kind of it only.
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": setup.context_len,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }


def is_latent(pool: Any) -> bool:
    return hasattr(pool, "kv_buffer")


def latent_cache(pool: Any) -> list[torch.Tensor]:
    """The KV cache of a model with latent attention: one tensor a layer, [kv slots, 1, latent and rotary part]."""
    return list(pool.kv_buffer)
