"""A tiny Qwen3-Next and its next-token layer (MTP): a layer of linear attention (GDN) whose state lies beside the KV
cache, a full one behind it, and experts."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases import model


def gdn(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role."""
    return model.dimensions(setup) | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "num_nextn_predict_layers": 1,
        # Multiples of what sglang pads these three to on a CPU.
        "intermediate_size": 64,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "head_dim": setup.head_dim,
        "partial_rotary_factor": 0.5,
    }
