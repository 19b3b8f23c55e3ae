"""FlashAttention 3's kernels as operators on CPU tensors: they read page table and lengths when they run.

Each is one operator, so that the emulated engine records one call, as a CUDA graph records one kernel. A row of the
page table goes on into the next one in its storage, as it does for a kernel. What lies outside of the storage, or on a
page that the cache does not have, is foreign memory on real hardware; here a sequence that reads there comes out as
NaN.
"""

from __future__ import annotations

import math

import torch

from runners.engines import launch_memory, touched
from runners.engines.standins import paged
from runners.engines.standins.dense import Pair, attention, seen_keys, whole

KERNEL = "fa3_paged_attention"
_NAMES = paged.Names(kernel=KERNEL, table="page_table", cache="k_cache")


def _paged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    latent_query: torch.Tensor | None,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    most: int,
    schedule: torch.Tensor | None,
    sinks: torch.Tensor | None,
    causal: bool,
    left: int,
    right: int,
    soft_cap: float,
    scale: float,
) -> Pair:
    """query: [tokens, heads, dim]; key, value: [pages, page size, key heads, dim]; lengths: tokens of each sequence;
    page_table: the pages of each; query_starts: where its queries begin, and where the last one's end; most: the most
    queries of a sequence as the host knows them, by which a launch is cut into programs. Gives
    [tokens, heads, dim] in the query's dtype and natural logarithms, float32 [heads, tokens]; NaN for queries of no
    sequence. latent_query: [tokens, heads, the values' dim]: queries of values, which count as the first part of each
    key. sinks: [heads], as attention() has them."""
    launch_memory.watched()
    touched.reads(lengths, query_starts)
    shape = shape_of(query.shape[1], key.shape[2], query.shape[2], key.shape[1], left, right)
    _compare_schedule(schedule, lengths, shape)
    out = query.new_full((*query.shape[:2], value.shape[-1]), math.nan)
    logs = query.new_full(query.shape[:2], math.nan, dtype=torch.float32)
    starts = whole(query_starts)
    caches = (key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:]))
    for sequence, length in enumerate(lengths.tolist()):
        rows = slice(max(0, int(starts[sequence])), max(0, int(starts[sequence + 1])))
        count = query[rows].shape[0]
        if count > most:
            launch_memory.report(f"max_seqlen_q below a sequence's queries in {KERNEL}", count, most)
        first, (pages, size) = sequence * page_table.stride(0), key.shape[:2]
        slots = paged.slots_of(page_table, first, max(0, length), pages, size, _NAMES) if count else None
        if slots is None:
            continue
        seen = seen_keys(count, slots.numel(), causal=causal, left=left, right=right)
        operands = _operands(query[rows], None if latent_query is None else latent_query[rows], caches, slots)
        out[rows], logs[rows] = attention(*operands, seen, scale=scale, soft_cap=soft_cap, sinks=sinks)
    return out, logs.T.contiguous()


def _operands(
    query: torch.Tensor, latent_query: torch.Tensor | None, caches: Pair, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The queries, keys and values of a sequence; with latent queries the values stand before the keys."""
    for cache in caches:
        touched.reads_rows(cache, slots)
    keys, values = (cache[slots] for cache in caches)
    if latent_query is None:
        return query, keys, values
    return torch.cat((latent_query, query), -1), torch.cat((values, keys), -1), values


def schedule_of(lengths: torch.Tensor) -> torch.Tensor:
    """A schedule as long as FlashAttention 3's own for single queries: a counter, and four numbers for each sequence,
    of which there are a multiple of four. Here the first numbers are the lengths that it is made for, and who makes it
    puts its shape in the counter's place."""
    made = lengths.new_zeros(1 + -(-lengths.numel() // 4) * 4 * 4)
    made[1 : 1 + lengths.numel()] = lengths
    return made


def shape_of(heads: int, groups: int, size: int, page_size: int, left: int, right: int) -> int:
    """The rest that a schedule depends on, as one number: heads of queries and of keys, their size, that of a page, and
    in the last bit whether there is a window, over which keys are divided otherwise than over all of them."""
    windowed = left >= 0 or right >= 0
    # Sizes of heads are multiples of 8, and the number is to fit 32 bits.
    return (((heads * 64 + groups) * 64 + size // 8) * 512 + page_size) * 2 + windowed


def _compare_schedule(schedule: torch.Tensor | None, lengths: torch.Tensor, shape: int) -> None:
    """A kernel divides its work as the schedule says, which is made ahead of the launch."""
    if schedule is None:
        return
    if int(schedule[0]) // 2 != shape // 2:
        launch_memory.report(f"schedule of other heads or pages in {KERNEL}", int(schedule[0]))
    elif int(schedule[0]) != shape:
        launch_memory.report(f"schedule of another window in {KERNEL}", int(schedule[0]))
    made, count = schedule[1 : 1 + lengths.numel()], lengths.numel()
    if made.numel() < count:
        launch_memory.report(f"schedule of fewer sequences in {KERNEL}", made.numel(), count)
    elif not torch.equal(made, lengths):
        first = int((made != lengths).nonzero()[0])
        launch_memory.report(f"schedule of other lengths in {KERNEL}", first, count)


def _merged(value: torch.Tensor, logs: torch.Tensor, other: torch.Tensor, other_logs: torch.Tensor) -> Pair:
    """Attention over the keys of two calls, from the result of each. logs: natural, [tokens, heads]. Two calls that saw
    no key give NaN, as -inf less -inf does."""
    logs, other_logs = (part.masked_fill(part == math.inf, -math.inf) for part in (logs, other_logs))
    top = torch.maximum(logs, other_logs)
    weight, other_weight = torch.exp(logs - top), torch.exp(other_logs - top)
    total = weight + other_weight
    both = value.float() * (weight / total)[..., None] + other.float() * (other_weight / total)[..., None]
    return both.to(value.dtype), top + torch.log(total)


_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define(
    f"{KERNEL}(Tensor query, Tensor key, Tensor value, Tensor? latent_query, Tensor lengths, Tensor page_table, "
    "Tensor query_starts, int most, Tensor? schedule, Tensor? sinks, bool causal, int left, int right, "
    "float soft_cap, float scale) -> (Tensor, Tensor)"
)
_library.define("fa3_merge(Tensor value, Tensor logs, Tensor other, Tensor other_logs) -> (Tensor, Tensor)")
_library.define("fa3_schedule(Tensor lengths) -> Tensor")
for _name, _body in ((KERNEL, _paged), ("fa3_merge", _merged), ("fa3_schedule", schedule_of)):
    _library.impl(_name, _body, "CPU")

paged_attention = torch.ops.eagleeye.fa3_paged_attention.default
merge = torch.ops.eagleeye.fa3_merge.default
schedule = torch.ops.eagleeye.fa3_schedule.default
