"""A tiny Gemma-4 target and its assistant: a sliding and a full layer each, with heads of different size."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from repro.cases.layout import WINDOW

LAYERS = ("sliding_attention", "full_attention")
# Before, the worker is another one.
SERVED_SINCE = "0.5.14"


def _text(setup: Setup, hidden_size: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "sliding_window": (setup.window or WINDOW) + 1,  # the token itself is one of them
        "hidden_size": hidden_size,
        # Multiples of what sglang pads these two to on a CPU.
        "intermediate_size": 64,
        "moe_intermediate_size": 64,
        "num_attention_heads": setup.num_heads,
        "num_key_value_heads": setup.num_kv_heads,
        "vocab_size": setup.vocab_size,
        "max_position_embeddings": setup.context_len,
        "rms_norm_eps": 1e-5,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "tie_word_embeddings": True,
        "torch_dtype": setup.dtype,
    }


def target(setup: Setup) -> dict[str, Any]:
    """In sglang's words: the plain sizes are those of full layers, and sliding ones have their own."""
    full = 2 * setup.head_dim
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        **_text(setup, setup.hidden_size),
        "head_dim": full,
        "v_head_dim": full,
        "swa_head_dim": setup.head_dim,
        "swa_v_head_dim": setup.head_dim,
        "swa_num_key_value_heads": setup.num_kv_heads,
    }


def assistant(setup: Setup) -> dict[str, Any]:
    """In Hugging Face's words, which sglang turns into its own. Its hidden size is another than the target's, so that
    one cannot stand for the other."""
    text = _text(setup, setup.hidden_size + 16 * setup.num_heads)
    sizes = {"head_dim": setup.head_dim, "global_head_dim": 2 * setup.head_dim}
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": setup.hidden_size,
        "tie_word_embeddings": True,
        "torch_dtype": setup.dtype,
        "text_config": {"model_type": "gemma4_text", **text, **sizes},
    }


def served(setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both for rounds: with heads of their own, as texts of a head that is the embedding say one token for ever. With
    Transformers 5.19 full layers have another size of heads, unless it is said that it is the same."""
    untied = {"tie_word_embeddings": False}
    whole, draft = target(setup), assistant(setup)
    return (
        whole | untied | {"global_head_dim": whole["head_dim"]},
        draft | untied | {"text_config": draft["text_config"] | untied},
    )
