"""The models that there is a reference for, by the names of sglang's classes."""

from __future__ import annotations

from typing import Any

from runners.releases.reference import deepseek, llama
from runners.releases.reference.llama import Model

MODELS = {
    "LlamaForCausalLM": llama.target,
    "LlamaForCausalLMEagle": llama.eagle,
    "LlamaForCausalLMEagle3": llama.eagle3,
    "MiMoV2MTP": llama.mimo,
    "DeepseekV3ForCausalLM": deepseek.target,
    "DeepseekV3ForCausalLMNextN": deepseek.next_token,
}


def read(model: Any, vocab: int) -> Model | None:
    """None where there is no reference for this model. vocab: how many tokens it names."""
    make = MODELS.get(type(model).__name__)
    return make(model, vocab) if make else None
