"""The moves of KV rows, by sglang's own functions where they are in this release.

EAGLE's first workers move in Triton kernels: the last page of a prefix is copied for every branch before a draft
(eagle_worker.py), accepted rows close up after a verify step (eagle_info.py; gone since 0.5.14, where nobody calls the
kernels that are left). EAGLE v2 drafts trees on pages since 0.5.13, with moves of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.speculative import spec_utils
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.utils.common import next_power_of_2

from repro.cases.case import Setup
from repro.cases.layout import pool_tokens, row_pages
from repro.traces.paths import Recorded
from runners.releases.adapters.kv_move.family import Batch, Move, Pools, branches_by
from runners.releases.workers.building import as_on_gpus
from runners.releases.workers.posing import Posing
from runners.releases.workers.present import GENERATION

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LAYERS = 2
# What the filter of finished requests has been called, newest first.
FILTERS = ("create_num_accept_tokens_filter", "create_num_accepted_drafts_filter", "create_accept_length_filter")
ACCEPT = "move_accept_tokens_to_target_kvcache"
DUPLICATE = "duplicate_prefix_tail_to_draft_branches"


def pools(setup: Setup, device: str) -> Pools:
    if device == "cpu":
        as_on_gpus()
    cache = MHATokenToKVPool(
        pool_tokens(setup),
        setup.page_size,
        DTYPES[setup.dtype],
        setup.num_kv_heads,
        setup.head_dim,
        LAYERS,
        device,
        enable_memory_saver=False,
        enable_alt_stream=False,
        enable_kv_cache_copy=True,
    )
    requests = ReqToTokenPool(
        setup.slots + GENERATION.spare_rows, row_pages(setup) * setup.page_size, device, enable_memory_saver=False
    )
    return Pools(setup=setup, cache=cache, requests=requests)


Filter = Callable[..., torch.Tensor]


def verify_with(accept_filter: Filter) -> Callable[[Pools, Batch, torch.Tensor], dict[str, torch.Tensor]]:
    """The move after a verify step. accept_filter: the filter of finished requests."""
    kernels: Any = spec_utils

    def verify(pools: Pools, batch: Batch, accepted: torch.Tensor) -> dict[str, torch.Tensor]:
        setup, correct = pools.setup, batch.num_correct_drafts
        source, target, free = kernels.get_src_tgt_cache_loc(
            batch.seq_lens, batch.out_cache_loc, accepted, correct, setup.num_draft_tokens, setup.page_size
        )
        # Where less than nothing is to be freed, nothing is, and the record shows it.
        freed = torch.empty((max(0, int(free.sum())),), dtype=torch.int64, device=free.device)
        kernels.get_target_cache_loc[(batch.size,)](
            target,
            freed,
            correct,
            free,
            batch.out_cache_loc,
            setup.num_draft_tokens,
            next_power_of_2(setup.num_draft_tokens),
            next_power_of_2(batch.size),
        )
        pools.cache.move_kv_cache(target, source)
        return {"freed": freed, **_left(accept_filter, setup, batch, target)}

    return verify


def _left(accept_filter: Filter, setup: Setup, batch: Batch, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The slots of those requests that go on, and how long all of them are then."""
    correct, lengths = batch.num_correct_drafts, batch.seq_lens.clone()
    count = int((correct[batch.unfinished] + 1).sum())
    remaining = torch.empty((count,), dtype=torch.int64, device=target.device)
    accepted = accept_filter(correct, batch.unfinished, lengths)
    spec_utils.filter_finished_cache_loc_kernel[(batch.size,)](
        remaining, target, correct, accepted, next_power_of_2(batch.size), next_power_of_2(setup.num_draft_tokens)
    )
    return {"left": remaining, "lengths": lengths}


def verifies(accept_filter: Filter) -> dict[Recorded, Move]:
    """With the accepted places alone, as sglang's callers do it; and with a list as long as accept_index, in which
    places that nothing was accepted for follow: the counts do not cover these, so that the targets have a tail."""
    verify = verify_with(accept_filter)

    def packed(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
        return verify(pools, batch, batch.accept_index[batch.accept_index != -1])

    def with_tail(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
        accepted = batch.accept_index != -1
        return verify(pools, batch, torch.cat([batch.accept_index[accepted], batch.accept_index[~accepted]]))

    return {Recorded.VERIFY: packed, Recorded.VERIFY_TAIL: with_tail}


def branches(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
    """Before a draft on pages: slots for all branches, and the prefix's last page for each."""
    setup, rows = pools.setup, pools.requests.req_to_token
    begun = batch.seq_lens % setup.page_size
    pages = (begun + setup.num_steps + setup.page_size - 1) // setup.page_size
    ends = batch.seq_lens - begun + pages * (setup.page_size * setup.topk)
    slots = _allocated(rows, batch, ends)
    copies = int(begun.sum()) * (setup.topk - 1)
    target = torch.zeros(copies, dtype=torch.int32, device=rows.device)
    source = torch.zeros(copies, dtype=torch.int32, device=rows.device)
    spec_utils.assign_draft_cache_locs[(batch.size,)](
        batch.req_pool_indices,
        rows,
        batch.seq_lens,
        ends - batch.seq_lens,
        pages,
        slots,
        source,
        target,
        torch.cumsum(begun, dim=0),
        copies,
        rows.shape[1],
        setup.topk,
        setup.num_steps,
        setup.page_size,
        next_power_of_2(batch.size),
        next_power_of_2(setup.num_steps + setup.page_size),
    )
    if copies:
        pools.cache.move_kv_cache(target, source)
    drafts = batch.size * setup.topk * setup.num_steps
    return {"draft_slots": slots[:drafts]}


def _allocated(rows: torch.Tensor, batch: Batch, ends: torch.Tensor) -> torch.Tensor:
    """The slots that the allocator gives for the branches of all requests, one behind the other."""
    spans = zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), ends.tolist(), strict=True)
    return torch.cat([rows[row, start:end].to(torch.int64) for row, start, end in spans])


def on_pages(setup: Setup, move: Move) -> Mapping[Recorded, Move]:
    """Branches have pages of their own only where there are branches and pages."""
    return {Recorded.BRANCHES: move} if setup.topk > 1 and setup.page_size > 1 else {}


def accept(pools: Pools, batch: Batch) -> dict[str, torch.Tensor]:
    """The accepted rows of a tree close up behind the prefix."""
    arguments = batch.schedule_batch(pools), batch.accept_index, batch.num_correct_drafts
    if hasattr(spec_utils, ACCEPT):  # since 0.5.14
        getattr(spec_utils, ACCEPT)(*arguments, pools.allocator)
        return {}
    worker = Posing(
        device=batch.seq_lens.device,
        speculative_num_draft_tokens=pools.setup.num_draft_tokens,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.allocator,
    )
    getattr(EAGLEWorkerV2, ACCEPT)(worker, *arguments)
    return {}


def moves(setup: Setup) -> dict[Recorded, Move]:
    """The moves of this release: the first workers' verify, what is accepted by the second, and branches on pages."""
    known: dict[Recorded, Move] = {}
    if hasattr(EagleVerifyInput, "verify"):
        known |= verifies(next(getattr(spec_utils, name) for name in FILTERS if hasattr(spec_utils, name)))
    if hasattr(spec_utils, ACCEPT) or hasattr(EAGLEWorkerV2, ACCEPT):
        known[Recorded.ACCEPT] = accept
    return {**known, **on_pages(setup, branches_of_release())}


def branches_of_release() -> Move:
    """The move of branches by sglang's function, wherever it is; before 0.5.13 by the first worker's kernel."""
    for name in ("eagle_worker_common", "base_spec_worker", "eagle_info_v2"):
        place = f"sglang.srt.speculative.{name}"
        if importlib.util.find_spec(place) and hasattr(importlib.import_module(place), DUPLICATE):
            return branches_by(getattr(importlib.import_module(place), DUPLICATE))
    return branches
