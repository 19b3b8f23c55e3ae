"""The models that there is a reference for, by the names of sglang's classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from runners.releases.reference import deepseek, dsv4, gdn, gemma4, gpt_oss, llama
from runners.releases.reference.llama import Model

MODELS: Mapping[str, Callable[[Any, int], Model | None]] = {
    "LlamaForCausalLM": llama.target,
    "LlamaForCausalLMEagle": llama.eagle,
    "LlamaForCausalLMEagle3": llama.eagle3,
    "Qwen2_5_VLForConditionalGeneration": llama.target,
    "GptOssForCausalLM": gpt_oss.target,
    "Glm4MoeForCausalLM": llama.target,
    "Glm4MoeForCausalLMNextN": partial(deepseek.next_token, attention_of=llama.Heads.of),
    "MiMoV2MTP": llama.mimo,
    "DeepseekV3ForCausalLM": deepseek.target,
    "DeepseekV3ForCausalLMNextN": deepseek.next_token,
    # Where all keys are chosen, sparse attention is attention.
    "DeepseekV32ForCausalLM": deepseek.target,
}

# Models whose states are not kept, or whose caches are not read: of them only whole texts are known.
OF_WHOLE_TEXTS: Mapping[str, Callable[[Any, int], Model]] = {
    "Qwen3NextForCausalLM": gdn.target,
    "Qwen3NextForCausalLMMTP": gdn.next_token,
    "Qwen3_5ForConditionalGeneration": gdn.target,
    "Qwen3_5ForCausalLMMTP": gdn.next_token,
    "Gemma4ForCausalLM": gemma4.target,
    "DeepseekV4ForCausalLM": dsv4.target,
    "DeepseekV4ForCausalLMNextN": dsv4.next_token,
}


def read(model: Any, vocab: int) -> Model | None:
    """None where there is no reference for this model. vocab: how many tokens it names."""
    make = MODELS.get(type(model).__name__)
    return make(model, vocab) if make else None


def read_whole(model: Any, vocab: int) -> Model | None:
    """The same, to go over texts from their first tokens on."""
    make = OF_WHOLE_TEXTS.get(type(model).__name__)
    return make(model, vocab) if make else read(model, vocab)
