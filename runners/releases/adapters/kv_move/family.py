"""The objects that the KV moves of every release work on: a KV cache, its index, and a verified batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.workers.posing import Posing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """sglang's own pools. cache: the KV cache, which does the moves; requests: the one that holds req_to_token."""

    setup: Setup
    cache: Any
    requests: Any

    @property
    def allocator(self) -> Any:
        """The part of an allocator that a move asks for."""
        return Posing(get_kvcache=lambda: self.cache, page_size=self.setup.page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """n requests after a verify step. out_cache_loc: the KV slots of their trees, [n * num_draft_tokens];
    accept_index: int32 [n, num_steps + 1], -1 behind what was accepted; num_correct_drafts: int32 [n], the root not
    counted; unfinished: the rows that go on."""

    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    accept_index: torch.Tensor
    num_correct_drafts: torch.Tensor
    unfinished: torch.Tensor

    @property
    def size(self) -> int:
        return len(self.seq_lens)

    def schedule_batch(self, pools: Pools) -> Any:
        """The part of a ScheduleBatch that a move asks for."""
        return Posing(
            seq_lens=self.seq_lens,
            out_cache_loc=self.out_cache_loc,
            req_pool_indices=self.req_pool_indices,
            req_to_token_pool=pools.requests,
            device=self.seq_lens.device,
        )


# What a move gives besides moved rows: named tensors.
Move = Callable[[Pools, Batch], Mapping[str, torch.Tensor]]


def branches_by(duplicate: Any) -> Move:
    """The prefix's last page for every branch, from 0.5.13 on, by sglang's function for it."""

    def branches(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
        setup = pools.setup
        begun = batch.seq_lens % setup.page_size
        duplicate(
            pools.cache,
            pools.requests.req_to_token[batch.req_pool_indices],
            batch.seq_lens - begun,
            begun,
            (begun + setup.num_steps + setup.page_size - 1) // setup.page_size,
            setup.topk,
            setup.page_size,
        )
        return {}

    return branches
