"""A tiny GLM-4.5 and its next-token layer (MTP): half of each head is rotated, heads are normed, and the draft model
has experts."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases import model
from runners.releases.options.deepseek import EXPERTS


def glm(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role."""
    return model.dimensions(setup) | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 1,
        **EXPERTS,
        "head_dim": setup.head_dim,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
    }
