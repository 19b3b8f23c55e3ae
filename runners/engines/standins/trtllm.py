"""Stands in for TensorRT-LLM's attention as flashinfer publishes it for SM100: its functions and their checks, on CPU
tensors.

Not modelled: how a call is divided among programs, and the counters and workspaces by which they find each other.
Quantised caches, logarithms and masks (those are XQA's, on SM90 and SM120) are refused: no runner that is driven has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from runners.engines.standins import trtllm_kernels

PAGE_SIZES = (16, 32, 64)
LATENT_PAGE_SIZES = (32, 64)
HEAD_DIMS = (64, 128, 256)
LATENT_DIMS = ((512, 64), (256, 64))
# Tokens that a row of a page table has room for a multiple of, for latent attention.
_LATENT_ROW = 128
_DTYPES = (torch.float16, torch.bfloat16)
# Arguments that change how fast a kernel is, not what it gives.
_WITHOUT_EFFECT = frozenset({"enable_pdl", "multi_ctas_kv_counter_buffer", "backend", "is_var_seq"})


def trtllm_batch_decode_with_kv_cache(
    query: Tensor,
    kv_cache: tuple[Tensor, Tensor],
    workspace_buffer: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    bmm1_scale: float = 1.0,
    bmm2_scale: float = 1.0,
    window_left: int = -1,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sinks: Tensor | None = None,
    q_len_per_req: int | None = 1,
    max_q_len: int | None = None,
    cum_seq_lens_q: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The attention of each sequence's last queries, [tokens, heads, dim], to the tokens of its pages up to their own.
    kv_cache: keys and values, each [pages, key heads, page size, dim]. Each sequence has q_len_per_req queries, or as
    many as cum_seq_lens_q says."""
    if q_len_per_req is not None:
        most, batch = q_len_per_req, len(query) // q_len_per_req
    else:
        most, batch = _given(max_q_len, "max_q_len"), len(_given(cum_seq_lens_q, "cum_seq_lens_q")) - 1
    _refuse("trtllm_batch_decode_with_kv_cache", options)
    _whole(q_len_per_req=most, max_seq_len=max_seq_len, window_left=window_left)
    _check(query, kv_cache, block_tables, sinks)
    starts = cum_seq_lens_q  # the kernel follows them wherever they are given
    values = trtllm_kernels.attended(
        *(query, *kv_cache, seq_lens, block_tables, starts, batch, most, max_seq_len, sinks),
        *(True, window_left, bmm1_scale, bmm2_scale),
    )
    return _put(values, out, out_dtype, query)


def trtllm_batch_context_with_kv_cache(
    query: Tensor,
    kv_cache: tuple[Tensor, Tensor],
    workspace_buffer: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float,
    bmm2_scale: float,
    batch_size: int,
    cum_seq_lens_q: Tensor,
    cum_seq_lens_kv: Tensor,
    window_left: int = -1,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sinks: Tensor | None = None,
    causal: bool = True,
    **options: Any,
) -> Tensor:
    """The same for a prefill, whose sequences have queries as cum_seq_lens_q says."""
    if not causal and window_left >= 0:
        raise NotImplementedError("Sliding-window non-causal attention is not supported for trtllm-gen paged KV cache.")
    _refuse("trtllm_batch_context_with_kv_cache", options)
    _whole(max_q_len=max_q_len, max_kv_len=max_kv_len, batch_size=batch_size, window_left=window_left)
    _check(query, kv_cache, block_tables, sinks)
    values = trtllm_kernels.attended(
        *(query, *kv_cache, seq_lens, block_tables, cum_seq_lens_q, batch_size, max_q_len, max_kv_len, sinks),
        *(causal, window_left, bmm1_scale, bmm2_scale),
    )
    return _put(values, out, out_dtype, query)


def trtllm_batch_decode_with_kv_cache_mla(
    query: Tensor,
    kv_cache: Tensor,
    workspace_buffer: Tensor,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    out: Tensor | None = None,
    bmm1_scale: float = 1.0,
    bmm2_scale: float = 1.0,
    **options: Any,
) -> Tensor:
    """Latent attention: query [sequences, queries of each, heads, size] of a latent and a rotary part; kv_cache: rows
    of both parts, [pages, 1, page size, size], or without the second dimension. Gives the latent part in bfloat16."""
    _refuse("trtllm_batch_decode_with_kv_cache_mla", options)
    _whole(max_seq_len=max_seq_len)
    cache = kv_cache.unsqueeze(1) if kv_cache.dim() == 3 else kv_cache
    batch, each, heads, size = query.shape
    page = cache.shape[-2]
    _need(page in LATENT_PAGE_SIZES, f"Supported block_size are 32 and 64, got {page}")
    dims = (kv_lora_rank, qk_rope_head_dim)
    _need(dims in LATENT_DIMS, f"Unsupported MLA dimensions, got kv_lora_rank and qk_rope_head_dim {dims}")
    _need(size == cache.shape[-1] == sum(dims), f"Expected head dim {sum(dims)}, got {size} and {cache.shape[-1]}")
    _need(block_tables.dim() == 2, f"block_tables must be 2D for shared paged KV layout, got {block_tables.dim()}")
    _need(len(block_tables) == batch, f"Expected batch size {batch} for block_table, got {len(block_tables)}")
    _need(
        block_tables.shape[-1] % (_LATENT_ROW // page) == 0,
        f"Expected block_num % (128 / block_size) == 0, got {block_tables.shape[-1]} and {page}",
    )
    _need(query.dtype == cache.dtype == torch.bfloat16, f"Missing TRTLLM-GEN kernel for {query.dtype}, {cache.dtype}")
    values = trtllm_kernels.attended(
        *(query.flatten(0, 1), cache, cache[..., :kv_lora_rank], seq_lens, block_tables, None),
        *(batch, each, max_seq_len, None, True, -1, bmm1_scale, bmm2_scale),
    )
    values = values.view(batch, each, heads, kv_lora_rank).to(torch.bfloat16)
    return values if out is None else out.copy_(values)


def _whole(**numbers: object) -> None:
    """TypeError of the first that is no whole number: compiled functions take no tensor for one."""
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise TypeError(f"Mismatched type on argument {name}. Expected `int` but got `{type(number).__name__}`")


def _given(value: Any, name: str) -> Any:
    if value is None:
        raise AssertionError(f"{name} is needed without q_len_per_req")
    return value


def _need(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def _refuse(function: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None and name not in _WITHOUT_EFFECT:
            raise NotImplementedError(f"{function} with {name} has no stand-in")


def _check(query: Tensor, kv_cache: tuple[Tensor, Tensor], tables: Tensor, sinks: Tensor | None) -> None:
    """Check arguments as flashinfer does before anything runs."""
    key, value = kv_cache
    heads, dim = query.shape[1:]
    _need(tables.dim() == 2, f"block_tables must be 2D for shared paged KV layout, got ndim={tables.dim()}")
    _need(key.shape == value.shape, f"keys and values differ in shape: {tuple(key.shape)}, {tuple(value.shape)}")
    _need(heads % key.shape[1] == 0, f"num_qo_heads must be a multiple of num_kv_heads: {heads}, {key.shape[1]}")
    _need(dim == key.shape[-1], f"head dims of queries and keys differ: {dim}, {key.shape[-1]}")
    is_compiled = query.dtype == key.dtype == value.dtype and query.dtype in _DTYPES
    is_compiled &= dim in HEAD_DIMS and key.shape[2] in PAGE_SIZES
    _need(is_compiled, f"Missing TRTLLM-GEN kernel: {query.dtype}, {key.dtype}, dim {dim}, page size {key.shape[2]}")
    _need(sinks is None or sinks.dtype == torch.float32, "attention_sinks must be a float tensor")


def _put(values: Tensor, out: Tensor | None, dtype: torch.dtype | None, query: Tensor) -> Tensor:
    dtype = dtype or (out.dtype if out is not None else query.dtype)
    _need(dtype in (query.dtype, *_DTYPES), f"Unsupported out_dtype: {dtype}")
    if out is None:
        return values.to(dtype)
    _need(out.dtype == dtype and out.shape == query.shape, f"out is {out.dtype} {tuple(out.shape)}")
    return out.copy_(values)


def get_device_sm_count(device: torch.device) -> int:
    """The multiprocessors of a B200."""
    return 148


def get_trtllm_gen_multi_ctas_kv_counter_bytes(batch_size: int, num_q_heads: int, sm_count: int) -> int:
    """The size of counters by which programs find each other; there are none here."""
    return 4


EXPORTS = {
    "flashinfer.decode": (trtllm_batch_decode_with_kv_cache, trtllm_batch_decode_with_kv_cache_mla),
    "flashinfer.prefill": (trtllm_batch_context_with_kv_cache,),
    "flashinfer.utils": (get_device_sm_count, get_trtllm_gen_multi_ctas_kv_counter_bytes),
}
