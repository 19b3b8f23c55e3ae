"""A tiny Qwen3.5 and its next-token layer (MTP): a layer of linear attention (GDN) whose state lies beside the
KV cache, and a full one behind it with positions in three dimensions (M-RoPE)."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases import model
from runners.releases.options import mrope


def qwen35(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role. The
    vision tower is built and never runs."""
    text = model.dimensions(setup) | {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "mtp_num_hidden_layers": 1,
        "intermediate_size": 64,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "head_dim": setup.head_dim,
        **mrope.interleaved(setup),
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "deepstack_visual_indexes": [],
        "out_hidden_size": setup.hidden_size,
    }
    return model.dimensions(setup) | {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
    }
