"""KV pools with slots of their own for sliding layers (sglang's SWAKVPool), seen through the full layers' slots of the
same tokens: what the harness's layout names."""

from __future__ import annotations

from typing import Any

import torch

from runners.releases.live import keys_and_values
from runners.releases.options.deepseek import is_latent, latent_cache


def shift(pool: Any, slots: int) -> None:
    """Give the tokens of KV slots 0..slots-1 theirs in sliding layers: one page on, but slot 0 for slot 0, so that one
    cannot stand for the other."""
    mapping, page = pool.full_to_swa_index_mapping, pool.page_size
    mapping[page:slots] = torch.arange(2 * page, slots + page, device=mapping.device)


def cache(pool: Any) -> list[torch.Tensor]:
    """Keys and values of the full layers, then of the sliding ones, [kv slots, heads, size], by full layers' slots."""
    full, sliding, page = pool.full_kv_pool, pool.swa_kv_pool, pool.page_size
    return [
        *(tensor[:-page] for tensor in keys_and_values(full)),
        *(tensor[page:] for tensor in keys_and_values(sliding)),
    ]


def any_cache(model_runner: Any) -> list[torch.Tensor]:
    """The cache of any kind of pool."""
    pool = model_runner.token_to_kv_pool
    if is_hybrid(pool):
        return cache(pool)
    full = getattr(pool, "full_kv_pool", pool)  # that of the full layers, where others are recurrent
    return latent_cache(full) if is_latent(full) else keys_and_values(full)


def is_hybrid(pool: Any) -> bool:
    return hasattr(pool, "swa_kv_pool")


def are_freed(pool: Any, request: Any) -> bool:
    """True if a request of a batch that is to run has no sliding slots, as it ended meanwhile: for a grammar the
    results of the round before are processed in between."""
    return is_hybrid(pool) and bool(request.finished())


def reserved(pool: Any) -> list[torch.Tensor]:
    """The rows that padding writes in sliding layers; what cache() gives begins behind them."""
    if not is_hybrid(pool):
        return []
    sliding = pool.swa_kv_pool
    return [tensor[: pool.page_size] for tensor in keys_and_values(sliding)]


def as_full(slots: torch.Tensor, pool: Any) -> torch.Tensor:
    """Slots of sliding layers as the full layers' slots of the same tokens, by the pool's own mapping; -1 for those of
    no token, but for slot 0."""
    mapping = pool.full_to_swa_index_mapping.long().clamp(min=0)  # newer ones end in a -1
    full = slots.new_full((len(pool.swa_kv_pool.k_buffer[0]),), -1)
    full[mapping] = torch.arange(len(mapping), dtype=full.dtype, device=full.device)
    full[0] = 0
    known = (slots >= 0) & (slots < len(full))
    return torch.where(known, full[torch.where(known, slots, 0).long()], -1)
