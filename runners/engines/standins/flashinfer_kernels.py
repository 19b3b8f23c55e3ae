"""flashinfer's kernels as operators on CPU tensors: they read lengths and indices when they run.

Each is one operator, so that the emulated engine records one call, as a CUDA graph records one kernel. Memory is read
as a kernel reads it: past the end of a view there is what lies behind it in the same storage. What lies outside is
foreign memory on real hardware; here a sequence that reads there comes out as NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from repro.cases.layout import Ints
from runners.engines import launch_memory, touched
from runners.engines.standins.dense import Pair, attention, memory_from, seen_keys, whole

# flashinfer's infinity: minus this is the logarithm that it returns for a query that sees no key.
INFINITY = 5e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The way from scores to weights. causal: the last query sees every key, the one before it one less, and so on.
    window_left: how many keys a query sees besides the one at its own position; -1: all. soft_cap: 0 for none."""

    causal: bool
    window_left: int
    soft_cap: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """bits: the masks of all sequences, each [queries, keys] packed lowest bit first and starting with a byte.
    starts: their first bytes."""

    bits: torch.Tensor
    starts: Ints

    def of(self, sequence: int, queries: int, keys: int) -> torch.Tensor:
        """The keys that each query sees: bool [queries, keys]. None of those for which there is no byte."""
        packed = np.zeros(-(-queries * keys // 8), dtype=np.uint8)
        start = int(self.starts[sequence])
        if start >= 0:
            touched.reads(self.bits[start : start + packed.size])
            there = self.bits[start : start + packed.size].numpy()
            packed[: there.size] = there
        bits = np.unpackbits(packed, bitorder="little", count=queries * keys)
        return torch.from_numpy(bits.astype(np.bool_).reshape(queries, keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The page table of a call. numbers: page numbers, to the end of their storage. starts: where those of a sequence
    begin. last: the tokens on its last page. shape: pages of the cache, and tokens of a page."""

    numbers: torch.Tensor
    starts: Ints
    last: Ints
    shape: tuple[int, ...]

    def slots(self, sequence: int) -> torch.Tensor | None:
        """The KV slots of a sequence; None if it would read foreign memory."""
        count, size = self.shape
        first, end = int(self.starts[sequence]), int(self.starts[sequence + 1])
        within = np.arange(size)
        if end <= first:
            return torch.from_numpy(within[:0])
        if first < 0 or end > self.numbers.numel():
            return None
        read = self.numbers[first:end]
        touched.reads(read)
        pages = read.numpy().astype(np.int64)
        if pages.min() < 0 or pages.max() >= count:
            return None
        full = (end - first - 1) * size
        return torch.from_numpy((pages[:, None] * size + within).reshape(-1)[: full + max(0, int(self.last[sequence]))])


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, variant: Variant, mask: torch.Tensor | None
) -> Pair:
    """Attention of one sequence. A mask of its own stands for the causal one."""
    near = seen_keys(query.shape[0], key.shape[0], causal=variant.causal and mask is None, left=variant.window_left)
    seen = near if mask is None else mask if near is None else mask & near
    return attention(query, key, value, seen, scale=variant.scale, soft_cap=variant.soft_cap)


# The slots of the keys of a sequence, by its number; None if it would read foreign memory.
Places = Callable[[int], torch.Tensor | None]


def _each(
    query: torch.Tensor,
    caches: Pair,
    starts: Ints,
    places: Places,
    variant: Variant,
    mask: Mask | None,
    zeroed: bool = False,
) -> Pair:
    """Sequence by sequence, with base-2 logarithms. What belongs to none is what an uninitialised result holds, or
    zero."""
    out = torch.full(query.shape[:2] + caches[1].shape[-1:], 0.0 if zeroed else math.nan, dtype=query.dtype)
    logs = torch.full(query.shape[:2], math.nan, dtype=torch.float32)
    for sequence, (first, end) in enumerate(itertools.pairwise(starts.clip(min=0).tolist())):
        rows = slice(first, end)
        part = query[rows]
        if not part.shape[0]:
            continue
        read = places(sequence)
        if read is None:
            out[rows] = math.nan
            continue
        key, value = (cache[read] for cache in caches)
        seen = mask.of(sequence, part.shape[0], key.shape[0]) if mask else None
        out[rows], logs[rows] = _attention(part, key, value, variant, seen)
    return out, (logs * math.log2(math.e)).masked_fill(logs == -math.inf, -INFINITY)


def _mask(bits: torch.Tensor | None, starts: torch.Tensor | None) -> Mask | None:
    return Mask(bits=bits, starts=whole(starts)) if bits is not None and starts is not None else None


def _paged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    page_starts: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    mask: torch.Tensor | None,
    mask_starts: torch.Tensor | None,
    causal: bool,
    window_left: int,
    soft_cap: float,
    scale: float,
    zeroed: bool = False,
    planned_keys: torch.Tensor | None = None,
    planned_queries: torch.Tensor | None = None,
) -> Pair:
    """Over a paged cache: key and value [pages, page size, key heads, dim], pages a view of page numbers. planned: the
    starts of keys and queries that the host made its plan for, which is a finding where they are others."""
    launch_memory.watched()
    _need_one_index_type(query_starts, page_starts, pages, last_page_len, mask_starts)
    touched.reads(query_starts, page_starts, last_page_len, mask_starts)
    _compare_plan("kv_indptr", planned_keys, page_starts, pages)
    _compare_plan("qo_indptr", planned_queries, query_starts)
    caches = (key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:]))
    table = Pages(numbers=memory_from(pages), starts=whole(page_starts), last=whole(last_page_len), shape=key.shape[:2])

    def places(sequence: int) -> torch.Tensor | None:
        slots = table.slots(sequence)
        if slots is not None and slots.numel():
            for cache in caches:
                touched.reads_rows(cache, slots)
        return slots

    variant = Variant(causal=causal, window_left=window_left, soft_cap=soft_cap, scale=scale)
    return _each(query, caches, whole(query_starts), places, variant, _mask(mask, mask_starts), zeroed)


def _need_one_index_type(*numbers: torch.Tensor | None) -> None:
    """Kernels are compiled for 32-bit indices, and take whatever they are given for such: of wider ones every other
    number would be a half of one. ValueError where that would be."""
    for tensor in numbers:
        if tensor is not None and tensor.dtype != torch.int32:
            raise ValueError(f"flashinfer's kernels read {tensor.dtype} indices as torch.int32")


def _compare_plan(
    name: str, planned: torch.Tensor | None, starts: torch.Tensor, pages: torch.Tensor | None = None
) -> None:
    """A kernel does its work in parts that the host planned: keys that are on the device alone are not read. Of page 0
    alone they need not be, as that is padding's. pages: their numbers."""
    if planned is None:
        return
    host, device = whole(planned), whole(starts)
    if np.array_equal(host, device):
        return
    if pages is not None and host.shape == device.shape:
        numbers, apart = whole(pages), np.flatnonzero(np.diff(host) != np.diff(device))
        fewer = (np.diff(host) < np.diff(device))[apart].all()
        if fewer and not any(numbers[device[row] : device[row + 1]].any() for row in apart):
            return
    first = int(np.argmax(host != device)) if host.shape == device.shape else min(host.size, device.size)
    launch_memory.report(f"host plan of another {name} in paged_attention", first, device.size)


def _ragged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    mask: torch.Tensor | None,
    mask_starts: torch.Tensor | None,
    causal: bool,
    window_left: int,
    soft_cap: float,
    scale: float,
) -> Pair:
    """Over keys and values that lie one sequence behind the other: [keys, key heads, dim]."""
    _need_one_index_type(query_starts, key_starts, mask_starts)
    touched.reads(query_starts, key_starts, mask_starts)
    starts = whole(key_starts)

    def places(sequence: int) -> torch.Tensor | None:
        first, end = int(starts[sequence]), int(starts[sequence + 1])
        if first < 0 or end > key.shape[0]:
            return None
        return torch.arange(first, max(first, end))

    variant = Variant(causal=causal, window_left=window_left, soft_cap=soft_cap, scale=scale)
    return _each(query, (key, value), whole(query_starts), places, variant, _mask(mask, mask_starts))


def _merged(value: torch.Tensor, logs: torch.Tensor, other: torch.Tensor, other_logs: torch.Tensor) -> Pair:
    """Attention over the keys of two calls, from the result of each."""
    top = torch.maximum(logs, other_logs).float()
    weight, other_weight = torch.exp2(logs - top), torch.exp2(other_logs - top)
    total = weight + other_weight
    both = value.float() * (weight / total)[..., None] + other.float() * (other_weight / total)[..., None]
    return both.to(value.dtype), top + torch.log2(total)


_VARIANT = "Tensor? mask, Tensor? mask_starts, bool causal, int window_left, float soft_cap, float scale"
_GIVES = "(Tensor, Tensor)"
_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define(
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor query_starts, Tensor page_starts, Tensor pages, "
    f"Tensor last_page_len, {_VARIANT}, bool zeroed=False, Tensor? planned_keys=None, "
    f"Tensor? planned_queries=None) -> {_GIVES}"
)
_library.define(
    f"ragged_attention(Tensor query, Tensor key, Tensor value, Tensor query_starts, Tensor key_starts, {_VARIANT}) "
    f"-> {_GIVES}"
)
_library.define(f"merge_state(Tensor value, Tensor logs, Tensor other, Tensor other_logs) -> {_GIVES}")
for _name, _body in (("paged_attention", _paged), ("ragged_attention", _ragged), ("merge_state", _merged)):
    _library.impl(_name, _body, "CPU")

paged_attention = torch.ops.eagleeye.paged_attention.default
ragged_attention = torch.ops.eagleeye.ragged_attention.default
merge_state = torch.ops.eagleeye.merge_state.default
