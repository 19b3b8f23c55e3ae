"""Stands in for FlashMLA's attention over the rows that indices name, as DeepSeek-V4 calls it, on CPU tensors.

A schedule is made by the first call that is given an empty one, and serves those that follow: here it holds the lengths
that it is made for. By another one a kernel on a GPU leaves out keys or waits for ever, which is reported.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runners.engines import launch_memory, touched
from runners.engines.standins import dsv4_rows

MODULES = ("flash_mla", "flash_mla.flash_mla_interface", "sgl_kernel.flash_mla")
KERNEL = "sparse_decode_fwd"
_AT_ONCE = 32  # queries, of which each has its keys
_WITHOUT_STAND_IN = ("block_table", "cache_seqlens", "causal", "descale_q", "descale_k", "num_splits", "kv_format")


class FlashMLASchedMeta:
    """Mutable: the first call fills it."""

    def __init__(self, tile_scheduler_metadata: Tensor | None = None, num_splits: Tensor | None = None) -> None:
        self.tile_scheduler_metadata, self.num_splits = tile_scheduler_metadata, num_splits
        self.shape: tuple[int, ...] | None = None


def get_mla_metadata(*arguments: Any, **named: Any) -> tuple[FlashMLASchedMeta, None]:
    if arguments or any(value is not None and value is not False for value in named.values()):
        raise NotImplementedError("get_mla_metadata of lengths has no stand-in")
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    head_dim_v: int = dsv4_rows.SIZE,
    tile_scheduler_metadata: Any = None,
    num_splits: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    descale_q: Tensor | None = None,
    descale_k: Tensor | None = None,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    kv_format: str | None = None,
    use_legacy: bool = True,
) -> tuple[Tensor, Tensor]:
    """q: bfloat16 [n, queries of each, heads, 512]; the caches: bytes [pages, page size, 1, 584]; indices: int32 [n,
    queries of each, k] of rows, of which -1 is none; topk_length: int32 [n], how many of them count; attn_sink: float32
    [heads], the score of a key without a value."""
    arguments = locals()
    refused = [name for name in _WITHOUT_STAND_IN if arguments[name] is not None and arguments[name] is not False]
    if refused or not is_fp8_kvcache or not use_legacy:
        raise NotImplementedError(f"flash_mla_with_kvcache with {refused or 'another cache'} has no stand-in")
    if indices is None or indices.dtype != torch.int32:
        raise RuntimeError("indices must be int32")
    _need(q.dtype == torch.bfloat16 and q.shape[-1] == dsv4_rows.SIZE, f"no kernel for {q.dtype} of {q.shape[-1]}")
    for name in ("topk_length", "extra_topk_length", "extra_indices_in_kvcache"):
        _need(arguments[name] is None or arguments[name].dtype == torch.int32, f"{name} must be int32")
    plan = tile_scheduler_metadata
    others = 0 if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1]
    shape = (*q.shape[:3], indices.shape[-1], others)
    _need(plan.shape in (None, shape), "Your input arguments are inconsistent with sched_meta.")
    plan.shape = shape
    if plan.tile_scheduler_metadata is None:
        plan.tile_scheduler_metadata = torch.ops.eagleeye.mla_schedule(topk_length, extra_topk_length, len(q))
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    return torch.ops.eagleeye.mla_sparse(
        *(q, k_cache, indices, topk_length, attn_sink, extra_k_cache, extra_indices_in_kvcache, extra_topk_length),
        *(plan.tile_scheduler_metadata, scale),
    )


def _need(holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(text)


def _schedule(lengths: Tensor | None, others: Tensor | None, count: int) -> Tensor:
    """int32 [n, 2]: the lengths that it is made for; -1 where all indices count."""
    launch_memory.watched()
    touched.reads(lengths, others)
    made = torch.full((count, 2), -1, dtype=torch.int32)
    for column, each in enumerate((lengths, others)):
        if each is not None:
            made[:, column] = each
    return made


def _sparse(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    lengths: Tensor | None,
    sink: Tensor | None,
    other_cache: Tensor | None,
    other_indices: Tensor | None,
    other_lengths: Tensor | None,
    schedule: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """bfloat16 [n, queries of each, heads, 512] and float32 [n, heads, queries of each]."""
    _compare(schedule, _schedule(lengths, other_lengths, len(q)))
    touched.reads(indices, other_indices)
    seen = [_Seen.of(cache, indices, lengths, "k_cache")]
    if other_cache is not None and other_indices is not None:
        seen.append(_Seen.of(other_cache, other_indices, other_lengths, "extra_k_cache"))
    queries, out, logs = q.flatten(0, 1).float(), list[Tensor](), list[Tensor]()
    for part in torch.arange(len(queries)).split(_AT_ONCE):
        keys = torch.cat([each.keys[each.places[part]] for each in seen], 1)
        counts = torch.cat([each.counts[part] for each in seen], 1)[:, None]
        scores = (queries[part] @ keys.transpose(1, 2) * scale).masked_fill(~counts, -math.inf)
        logs.append(scores.logsumexp(-1))
        if sink is not None:
            scores = torch.cat((scores, sink[None, :, None].expand(len(scores), -1, 1)), -1)
        shares = scores.softmax(-1)[..., : keys.shape[1]]
        out.append(shares.nan_to_num(0.0) @ keys)  # a query without keys gets zeros
    shape = q.shape[:3]
    return (
        torch.cat(out).view(*shape, dsv4_rows.SIZE).to(q.dtype),
        torch.cat(logs).view(shape).transpose(1, 2).contiguous(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The rows of a cache that queries see. keys: float32 [rows, 512]; places: among these, of each query, [queries,
    k]; counts: whether a place counts."""

    keys: Tensor
    places: Tensor
    counts: Tensor

    @classmethod
    def of(cls, cache: Tensor, indices: Tensor, lengths: Tensor | None, name: str) -> _Seen:
        slots, each = indices.flatten(0, 1).long(), indices.shape[1]
        counts = slots >= 0
        if lengths is not None:
            many = lengths.repeat_interleave(each)[:, None]
            if (many > slots.shape[1]).any():
                launch_memory.report(f"load outside the indices of {name} in {KERNEL}", int(many.max()), slots.shape[1])
            counts &= torch.arange(slots.shape[1]) < many
        most = len(cache) * cache.shape[1]
        outside = counts & (slots >= most)
        if outside.any():
            launch_memory.report(f"load outside {name} in {KERNEL}", int(slots[outside][0]), most)
            counts &= ~outside
        used = counts.any(0).nonzero()
        width = int(used.max()) + 1 if len(used) else 0
        slots, counts = slots[:, :width], counts[:, :width]
        rows, places = torch.where(counts, slots, 0).unique(return_inverse=True)
        keys = dsv4_rows.get(cache.view(torch.uint8)[:, :, 0], cache.shape[1], rows)
        return cls(keys=keys, places=places, counts=counts)


def _compare(schedule: Tensor, right: Tensor) -> None:
    if schedule.shape != right.shape:
        launch_memory.report(f"schedule of another batch in {KERNEL}", len(schedule), len(right))
    elif not torch.equal(schedule, right):
        first = int((schedule != right).any(-1).nonzero()[0])
        launch_memory.report(f"schedule of other lengths in {KERNEL}", first, len(right))


_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define("mla_schedule(Tensor? lengths, Tensor? others, int count) -> Tensor")
_library.define(
    "mla_sparse(Tensor q, Tensor cache, Tensor indices, Tensor? lengths, Tensor? sink, Tensor? other_cache, "
    "Tensor? other_indices, Tensor? other_lengths, Tensor schedule, float scale) -> (Tensor, Tensor)"
)
_library.impl("mla_schedule", _schedule, "CPU")
_library.impl("mla_sparse", _sparse, "CPU")


def importable() -> None:
    """Let its modules be imported, with what is here and no more."""
    for name in MODULES:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        names: dict[str, Any] = vars(module)
        names["fused_norm_rope_attn_rope_cast"] = None  # another attention, which is imported and never called
        names |= {thing.__name__: thing for thing in (FlashMLASchedMeta, get_mla_metadata, flash_mla_with_kvcache)}
        sys.modules[name] = module
