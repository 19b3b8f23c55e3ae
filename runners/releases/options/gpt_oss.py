"""A tiny gpt-oss: a sliding and a full layer, each with attention sinks and experts with biases."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from repro.cases.runner_facts import RUNNER_FACTS
from runners.releases import model

_EXPERTS, _CHOSEN = 4, 2


def gpt_oss(setup: Setup) -> dict[str, Any]:
    """The configuration of the target. In rounds each token goes to all experts: a choice that rounding turns would be
    one of another text."""
    return model.dimensions(setup) | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        # It counts the token itself, as sglang's layers do not.
        "sliding_window": setup.window + 1,
        # A multiple of what sglang pads it to on a CPU.
        "intermediate_size": 64,
        "num_local_experts": _EXPERTS,
        "num_experts_per_tok": _EXPERTS if RUNNER_FACTS[setup.runner].serves else _CHOSEN,
        "swiglu_limit": 7.0,
        "head_dim": setup.head_dim,
        "attention_bias": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": setup.context_len,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    }
