"""A tiny DeepSeek-V4 and its next-token layer: layers that see a window, and that see compressed keys as well, of 4 or
of 128 tokens each; and the caches of its pool."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch

from repro.cases.case import Setup
from runners.engines.standins import dsv4_rows
from runners.releases import model
from runners.releases.options.deepseek import EXPERTS, QUERY_LATENT

# Before, its model runs through other kernels.
SINCE = "0.5.23"
# How many tokens a key of each layer stands for; 0: the layer sees the window alone, as the draft's does.
RATIOS = (0, 4, 128)
# Sizes for which its kernels are compiled. As many keys are chosen as there can be in a context that is driven.
_FIXED = {
    "num_key_value_heads": 1,
    "head_dim": dsv4_rows.SIZE,
    "qk_rope_head_dim": dsv4_rows.ROTARY,
    "index_head_dim": dsv4_rows.INDEXED,
    "index_topk": 512,
    "window_size": 128,
    "sliding_window": 128,
    "hc_mult": 4,
}


def config(setup: Setup) -> dict[str, Any]:
    """The configuration of target and draft model alike: sglang takes the draft's architecture from its role."""
    experts = {**EXPERTS, "first_k_dense_replace": 0, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc"}
    return {
        **model.dimensions(setup),
        **experts,
        **_FIXED,
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_hidden_layers": len(RATIOS),
        "num_nextn_predict_layers": 1,
        "compress_ratios": [*RATIOS, 0],
        "q_lora_rank": QUERY_LATENT,
        "o_lora_rank": QUERY_LATENT,
        "o_groups": 1,
        "index_n_heads": 4,
        "hc_sinkhorn_iters": 2,
        "hc_eps": 1e-6,
        "num_hash_layers": 0,
        "n_hash_layers": 0,
        "moe_layer_freq": 1,
        "compress_rope_theta": 40000.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": model.ROPE_THETA,
            "factor": 2.0,
            "original_max_position_embeddings": setup.context_len,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }


def arguments(known: Container[str]) -> dict[str, Any]:
    """sglang takes its own backend, whichever is asked for. Keys are chosen by PyTorch, as the kernels that a server
    chooses them with are compiled CUDA. As many KV slots for the window as for all tokens."""
    named = {
        "attention_backend": "dsv4",
        "dsa_topk_backend": "torch",
        "speculative_dsa_topk_backend": "torch",
        "kv_cache_dtype": "fp8_e4m3",
        "swa_full_tokens_ratio": 1.0,
    }
    return {name: value for name, value in named.items() if name in known}


def is_compressed(pool: Any) -> bool:
    """True of the pool of such a model."""
    return hasattr(pool, "compression_ratios")


def memory(pool: Any) -> dict[str, torch.Tensor]:
    """The caches of a pool, bytes [pages, bytes]: of windows, of compressed keys, and of those that an indexer sees."""
    pools = {"window": pool.swa_kv_pool.kv_buffer}
    for ratio, each in pool.kv_pools.items():
        pools[f"compressed_{ratio}_"] = each.kv_buffer
    for ratio, each in pool.index_pools.items():
        pools[f"indexed_{ratio}_"] = each.index_k_with_scale_buffer
    return {f"{name}{layer}": tensor for name, layers in pools.items() for layer, tensor in enumerate(layers)}


def states(pool: Any) -> list[torch.Tensor]:
    """Parts of keys yet incomplete, by layer, [slots, size]. The last slot is no request's."""
    pools = (*pool.compress_state_pools, *pool.indexer_compress_state_pools)
    return [each.kv_score_buffer.kv_score[:-1] for each in pools if each is not None]


def rows(pool: Any, table: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the rows of the tokens in these KV slots by cache, float32 [..., size]: of compressed keys the one that a
    token completes, and zeros of any other. table: of requests, [n, context]."""
    slots = table.long()
    windows = pool.full_to_swa_index_mapping[slots].long().clamp(min=0)
    for layer, cache in enumerate(pool.swa_kv_pool.kv_buffer):
        yield f"kv{layer}", _read(cache, pool.swa_page_size, windows)
    for ratio, each in pool.kv_pools.items():
        completes = (torch.arange(1, table.shape[1] + 1) % ratio == 0)[:, None]
        for layer, cache in enumerate(each.kv_buffer):
            yield f"compressed_{ratio}_{layer}", _read(cache, pool.page_size // ratio, slots // ratio) * completes


def _read(cache: torch.Tensor, page_size: int, slots: torch.Tensor) -> torch.Tensor:
    return dsv4_rows.get(cache.view(torch.uint8), page_size, slots.flatten()).unflatten(0, slots.shape)
