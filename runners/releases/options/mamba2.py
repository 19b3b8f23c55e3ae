"""A tiny Nemotron-H: two Mamba2 layers, whose states lie beside the KV cache, a full one and a feed-forward network."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases import model


def mamba2(setup: Setup) -> dict[str, Any]:
    """The configuration of the target; a Llama drafts for it."""
    return model.llama(setup) | {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "MM*-",
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        # It has two names.
        "n_groups": 2,
        "mamba_n_groups": 2,
        "conv_kernel": 4,
        # The chunk of a prefill: states are kept at no shorter distances.
        "chunk_size": 4,
        "mlp_hidden_act": "relu2",
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
    }
