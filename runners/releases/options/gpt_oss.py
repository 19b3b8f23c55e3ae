"""A tiny gpt-oss: a sliding and a full layer, each with attention sinks and experts with biases."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup


def gpt_oss(setup: Setup) -> dict[str, Any]:
    """The configuration of the target."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        # It counts the token itself, as sglang's layers do not.
        "sliding_window": setup.window + 1,
        "hidden_size": setup.hidden_size,
        # A multiple of what sglang pads it to on a CPU.
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "num_attention_heads": setup.num_heads,
        "num_key_value_heads": setup.num_kv_heads,
        "head_dim": setup.head_dim,
        "attention_bias": True,
        "vocab_size": setup.vocab_size,
        "max_position_embeddings": setup.context_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": setup.context_len,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": setup.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
