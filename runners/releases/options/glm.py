"""A tiny GLM-4.5 and its next-token layer (MTP): half of each head is rotated, heads are normed, and the draft model
has experts."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup


def glm(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": 1,
        "hidden_size": setup.hidden_size,
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
        "num_attention_heads": setup.num_heads,
        "num_key_value_heads": setup.num_kv_heads,
        "head_dim": setup.head_dim,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "vocab_size": setup.vocab_size,
        "max_position_embeddings": setup.context_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": setup.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
