"""Stands in for the functions of DeepGEMM that sglang's sparse attention calls to score keys, on CPU tensors.

Scores behind a row's length are NaN, as the kernels leave what lay there. A schedule holds the lengths that it is made
for: by another one a kernel on a GPU leaves out keys, or waits for ever, which is reported here.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runners.engines import launch_memory, touched
from runners.engines.standins.paged import Names, slots_of

MODULE, KERNEL = "deep_gemm", "paged_mqa_logits"
# Of an H100; it gives the size of a schedule.
SMS = 132
PAGE, _SIZE = 64, 128
_NAMES = Names(kernel=KERNEL, table="block_table", cache="kv_cache")


def get_num_sms() -> int:
    return SMS


def get_paged_mqa_logits_metadata(lengths: Tensor, page_size: int, sms: int) -> Tensor:
    """lengths: int32 [requests, queries of each, or 1]. Gives int32 [sms + 1, 2], whose memory holds them."""
    return torch.ops.eagleeye.mqa_schedule(lengths, page_size, sms)


def fp8_paged_mqa_logits(
    q: Tensor,
    kv: Tensor,
    weights: Tensor,
    lengths: Tensor,
    table: Tensor,
    schedule: Tensor,
    max_len: int,
    clean_logits: bool = False,
    **options: Any,
) -> Tensor:
    """The scores of the keys of each query's request, float32 [requests * queries, max_len]. q: eight bits [requests,
    queries of each, heads, 128]; kv: bytes [pages, 64, 1, 132], of each page 64 keys and then as many float32 scales;
    weights: float32 [requests * queries, heads]; lengths: int32 [requests, queries of each, or 1]; table: int32 of
    pages [requests, n]."""
    if clean_logits or any(value is not None for value in options.values()):
        raise NotImplementedError(f"fp8_paged_mqa_logits with {sorted(options)} has no stand-in")
    if lengths.dtype != torch.int32 or table.dtype != torch.int32:
        raise RuntimeError(f"lengths and pages must be int32, not {lengths.dtype} and {table.dtype}")
    return torch.ops.eagleeye.paged_mqa_logits(q, kv, weights, lengths, table, schedule, max_len)


def fp8_mqa_logits(q: Tensor, kv: tuple[Tensor, Tensor], weights: Tensor, ks: Tensor, ke: Tensor, **_: Any) -> Tensor:
    """The scores of the keys from ks to ke of each query, float32 [queries, keys]. q: eight bits [queries, heads, 128];
    kv: eight bits [keys, 128] and float32 [keys]; weights: float32 [queries, heads]; ks, ke: int32 [queries]."""
    keys, scales = kv
    scores = _scores(q.float(), keys.float(), weights) * scales.float()[None]
    place = torch.arange(len(keys))[None]
    return scores.masked_fill((place < ks[:, None]) | (place >= ke[:, None]), math.nan)


def _scores(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """[queries, keys] of q [queries, heads, size], keys [keys, size] and weights [queries, heads]."""
    return torch.einsum("qhk,qh->qk", torch.einsum("qhs,ks->qhk", q, keys).relu(), weights)


def _schedule(lengths: Tensor, page_size: int, sms: int) -> Tensor:
    """A schedule of DeepGEMM's size, which begins with the lengths it is made for."""
    made = torch.full(((sms + 1) * 2,), -1, dtype=torch.int32)
    first = lengths.reshape(-1)[: made.numel()]
    made[: first.numel()] = first
    return made.view(sms + 1, 2)


def _paged(q: Tensor, kv: Tensor, weights: Tensor, lengths: Tensor, table: Tensor, made: Tensor, most: int) -> Tensor:
    launch_memory.watched()
    touched.reads(lengths)
    requests, each = q.shape[:2]
    out = q.new_full((requests * each, most), math.nan, dtype=torch.float32)
    _compare(made.reshape(-1), lengths.reshape(-1))
    # Of a page first all keys, then all scales.
    pages = kv.reshape(len(kv), -1).view(torch.uint8)
    keys = pages[:, : PAGE * _SIZE].reshape(-1, _SIZE).view(torch.float8_e4m3fn)
    scales = pages[:, PAGE * _SIZE :].reshape(-1).view(torch.float32)
    for query in range(requests * each):
        row, number = divmod(query, each)
        length = int(lengths[row, number % lengths.shape[1]])
        if length > most:
            launch_memory.report(f"scores behind max_len in {KERNEL}", length, most)
        slots = slots_of(table, row * table.stride(0), max(0, length), len(pages), PAGE, _NAMES)
        if slots is None or not len(slots):
            continue
        slots = slots[:most]
        scored = _scores(q[row, number, None].float(), keys[slots].float(), weights[query, None])[0]
        out[query, : len(slots)] = scored * scales[slots]
    return out


def _compare(schedule: Tensor, lengths: Tensor) -> None:
    """The kernel divides its work as the schedule says, which is made ahead of the launch."""
    known = schedule[: lengths.numel()]
    if not torch.equal(known, lengths[: known.numel()]):
        first = int((known != lengths[: known.numel()]).nonzero()[0])
        launch_memory.report(f"schedule of other lengths in {KERNEL}", first, lengths.numel())


_LIBRARY = torch.library.Library("eagleeye", "FRAGMENT")
_LIBRARY.define("mqa_schedule(Tensor lengths, int page_size, int sms) -> Tensor")
_LIBRARY.define(
    f"{KERNEL}(Tensor q, Tensor kv, Tensor weights, Tensor lengths, Tensor page_table, Tensor schedule, "
    "int max_len) -> Tensor"
)
_LIBRARY.impl("mqa_schedule", _schedule, "CPU")
_LIBRARY.impl(KERNEL, _paged, "CPU")


def importable(scores: Callable[..., Tensor]) -> types.ModuleType:
    """Let `import deep_gemm` find this module. scores: fp8_paged_mqa_logits, or what calls it."""
    module = types.ModuleType(MODULE)
    module.__spec__ = importlib.machinery.ModuleSpec(MODULE, None)
    for function in (get_num_sms, get_paged_mqa_logits_metadata, scores, fp8_mqa_logits):
        vars(module)[function.__name__] = function
    sys.modules[MODULE] = module
    return module
