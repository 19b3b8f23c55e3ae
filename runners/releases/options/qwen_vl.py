"""A tiny Qwen2.5-VL, whose positions have three dimensions (M-RoPE). Its vision tower is built and never runs, as
images come as embeddings."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from runners.releases import model
from runners.releases.options import mrope


def qwen_vl(setup: Setup) -> dict[str, Any]:
    """The configuration of the target. The text's is in it a second time: heads have their own size only there."""
    text = model.dimensions(setup) | {
        "num_hidden_layers": 1,
        "intermediate_size": setup.hidden_size,
        "head_dim": setup.head_dim,
        **mrope.scaling(setup),
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "fullatt_block_indexes": [0],
        "out_hidden_size": setup.hidden_size,
    }
    return text | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": text,
        "vision_config": vision,
    }
