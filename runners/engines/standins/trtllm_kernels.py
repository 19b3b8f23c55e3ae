"""TensorRT-LLM's attention over pages, as flashinfer launches it on SM100, as one operator on CPU tensors.

The kernel takes a row of the page table for as wide as the table is, whatever its strides are, reads lengths and pages
as int32, and addresses values by the strides of keys (flashinfer 0.6.12, trtllm_fmha_kernel_launcher.cu). It is
launched for the longest sequence that the host knows: here it reads no key behind that, and says so.
"""

from __future__ import annotations

import math

import torch

from runners.engines import launch_memory, touched
from runners.engines.standins import paged
from runners.engines.standins.dense import attention, memory_from, seen_keys

KERNEL = "trtllm_paged_attention"
_NAMES = paged.Names(kernel=KERNEL, table="block_tables", cache="kv_cache")


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    query_starts: torch.Tensor | None,
    batch: int,
    most: int,
    longest: int,
    sinks: torch.Tensor | None,
    causal: bool,
    left: int,
    scale: float,
    out_scale: float,
) -> torch.Tensor:
    """query: [tokens, heads, dim]; key, value: [pages, key heads, page size, dim]; lengths: tokens of each sequence;
    tables: the pages of each; query_starts: where its queries begin and the last one's end; None where each of the
    `batch` sequences has `most` of them; longest: the longest sequence as the host knows it; left: keys before a
    query's own, -1 for all. value may be narrower than key, as its first part. Gives [tokens, heads, the values' dim]
    in float32; NaN for queries that no sequence has or that read foreign memory."""
    launch_memory.watched()
    out = query.new_full((*query.shape[:2], value.shape[-1]), math.nan, dtype=torch.float32)
    value = value.as_strided(value.shape, key.stride())
    caches = [cache.transpose(1, 2).flatten(0, 1) for cache in (key, value)]
    known = paged.numbers(_as_int32(lengths), 0, batch, KERNEL, "seq_lens")
    starts = _starts(query_starts, batch, most)
    if known is None or starts is None:
        return out
    table, width = _as_int32(tables), tables.shape[-1] * tables.element_size() // 4
    for sequence, length in enumerate(known.tolist()):
        rows = slice(max(0, starts[sequence]), max(0, starts[sequence + 1]))
        count = len(query[rows])
        if count > most:
            launch_memory.report(f"max_q_len below a sequence's queries in {KERNEL}", count, most)
        if length > longest:
            launch_memory.report(f"max_seq_len below a sequence's length in {KERNEL}", length, longest)
        kept = max(0, min(length, longest))
        slots = paged.slots_of(table, sequence * width, kept, key.shape[0], key.shape[2], _NAMES) if count else None
        if slots is None:
            continue
        for cache in caches if caches[0].shape == caches[1].shape else caches[:1]:
            touched.reads_rows(cache, slots)
        seen = seen_keys(count, kept, causal=causal, left=left, right=-1)
        keys, values = (cache[slots] for cache in caches)
        out[rows], _ = attention(query[rows], keys, values, seen, scale=scale, soft_cap=0.0, sinks=sinks)
    return out.mul_(out_scale)


def _as_int32(tensor: torch.Tensor) -> torch.Tensor:
    return memory_from(tensor).view(torch.int32)


def _starts(query_starts: torch.Tensor | None, batch: int, most: int) -> list[int] | None:
    if query_starts is None:
        return [most * n for n in range(batch + 1)]
    read = paged.numbers(_as_int32(query_starts), 0, batch + 1, KERNEL, "cum_seq_lens_q")
    return None if read is None else read.tolist()


_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define(
    f"{KERNEL}(Tensor query, Tensor key, Tensor value, Tensor lengths, Tensor tables, Tensor? query_starts, "
    "int batch, int most, int longest, Tensor? sinks, bool causal, int left, float scale, float out_scale) -> Tensor"
)
_library.impl(KERNEL, _attended, "CPU")
attended = torch.ops.eagleeye.trtllm_paged_attention.default
