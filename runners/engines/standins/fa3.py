"""Stands in for FlashAttention 3 as sgl_kernel publishes it: its functions and their checks, on CPU tensors.

Not modelled: how a call is divided among programs (splits, packed heads, the largest count of queries, which a captured
launch keeps). New keys and values, rotation and scales are refused: no runner that is driven has them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from runners.engines.standins import fa3_kernels

MODULE = "sgl_kernel.flash_attn"
_DTYPES = (torch.float16, torch.bfloat16)
_HEAD_DIM_MAX = 256
_WITHOUT_STAND_IN = (
    *("k", "v", "rotary_cos", "rotary_sin", "rotary_seqlens", "cache_batch_idx", "cache_leftpad"),
    *("q_descale", "k_descale", "v_descale", "attention_chunk", "only_qv"),
)
_LATENT_ROTARY_MAX = 64


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    *,
    only_qv: bool = False,
    out: Tensor | None = None,
) -> Any:
    """The attention of each sequence's queries to the tokens that its row of the page table holds; with
    return_softmax_lse also natural logarithms [heads, tokens]. cu_seqlens_k_new says nothing where no keys are new."""
    arguments = locals()
    _refuse({name: arguments[name] for name in _WITHOUT_STAND_IN})
    if page_table is None and cu_seqlens_q is not None and len(k_cache) != len(cu_seqlens_q) - 1:
        raise ValueError(f"k_cache without a page table has {len(k_cache)} rows, not one for each sequence")
    if cache_seqlens is None or page_table is None or cu_seqlens_q is None:
        raise NotImplementedError("flash_attn_with_kvcache without lengths, page table or query starts has no stand-in")
    if max_seqlen_q is None:
        raise RuntimeError("max_seqlen_q must be provided if cu_seqlens_q is provided")
    table = page_table if page_table.stride(-1) == 1 else page_table.contiguous()
    _check(q, k_cache, v_cache, qv, cache_seqlens, table, cu_seqlens_q)
    if scheduler_metadata is not None and scheduler_metadata.dtype != torch.int32:
        raise RuntimeError(f"scheduler_metadata must have dtype int32, not {scheduler_metadata.dtype}")
    scale = softmax_scale if softmax_scale is not None else (q.shape[-1] + (0 if qv is None else qv.shape[-1])) ** -0.5
    if sinks is not None:
        _check_sinks(sinks, q.shape[-2])
    left, right = window_size
    output, logs = fa3_kernels.paged_attention(
        *(q, k_cache, v_cache, qv, cache_seqlens, table, cu_seqlens_q, max_seqlen_q, scheduler_metadata, sinks),
        *(causal, left, right, softcap, scale),
    )
    output = output if out is None else _put(out, output, cu_seqlens_q)
    return (output, logs) if return_softmax_lse else output


def _put(out: Tensor, output: Tensor, query_starts: Tensor) -> Tensor:
    """The memory that a caller gave, whose rows of no sequence keep what they hold."""
    rows = torch.arange(len(out))
    written = (rows >= query_starts[0]) & (rows < query_starts[-1])
    return out.copy_(torch.where(written.view(-1, 1, 1), output, out))


def _check_sinks(sinks: Tensor, heads: int) -> None:
    if sinks.dtype != torch.bfloat16 or sinks.shape != (heads,) or not sinks.is_contiguous():
        raise RuntimeError(f"sinks must be contiguous bf16 of {heads} heads, not {sinks.dtype} {tuple(sinks.shape)}")


def _refuse(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        is_off = value is None or (isinstance(value, int) and not value)
        if not is_off:
            raise NotImplementedError(f"flash_attn_with_kvcache with {name} has no stand-in")


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qv: Tensor | None,
    lengths: Tensor,
    page_table: Tensor,
    query_starts: Tensor,
) -> None:
    """Check arguments as FlashAttention 3 does before anything runs. RuntimeError, as of its library."""

    def need(holds: bool, text: str) -> None:
        if not holds:
            raise RuntimeError(text)

    need(q.dtype in _DTYPES, f"FlashAttention only supports fp16 and bf16 data type, not {q.dtype}")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        need(cache.dtype == q.dtype, f"query and {name} must have the same dtype")
        need(cache.stride(-1) == 1, f"{name} must have contiguous last dimension")
    for name, numbers in (("seqused_k", lengths), ("page_table", page_table), ("cu_seqlens_q", query_starts)):
        need(numbers.dtype == torch.int32, f"{name} must have dtype torch.int32, not {numbers.dtype}")
    need(q.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    for name, numbers in (("seqused_k", lengths), ("cu_seqlens_q", query_starts)):
        need(numbers.is_contiguous(), f"{name} must be contiguous")
    batch = query_starts.numel() - 1
    need(lengths.shape == (batch,), f"seqused_k must have shape ({batch},), not {tuple(lengths.shape)}")
    need(page_table.dim() == 2 and len(page_table) == batch, f"page_table must have {batch} rows")
    head_dim, heads, groups = q.shape[-1], q.shape[-2], k_cache.shape[-2]
    need(head_dim % 8 == 0 and head_dim <= _HEAD_DIM_MAX, f"head_size {head_dim} is no multiple of 8 up to 256")
    need(k_cache.shape[-1] == head_dim, "query and key must have the same head_size")
    if qv is not None:
        need(head_dim <= _LATENT_ROTARY_MAX, "q_v is only supported for head_size <= 64")
        need(qv.shape == (*q.shape[:2], v_cache.shape[-1]), f"q_v must have the values' size, not {tuple(qv.shape)}")
        need(qv.dtype == q.dtype, "query and q_v must have the same dtype")
        need(qv.stride(-1) == 1, "q_v tensor must have contiguous last dimension")
    need(heads % groups == 0, "Number of heads in key/value must divide number of heads in query")


def get_scheduler_metadata(
    batch_size: int,
    *,
    cache_seqlens: Tensor,
    num_heads: int,
    num_heads_k: int,
    headdim: int,
    page_size: int,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Tensor:
    """A schedule for one query of each sequence, made for these lengths, heads, pages and window."""
    if len(cache_seqlens) != batch_size:
        raise RuntimeError(f"seqused_k must have shape ({batch_size},), not {tuple(cache_seqlens.shape)}")
    made: Tensor = fa3_kernels.schedule(cache_seqlens)
    made[0] = fa3_kernels.shape_of(num_heads, num_heads_k, headdim, page_size, *window_size)
    return made


def merge_state_v2(
    v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor | None = None, s_merged: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Merge the results of two calls for the same queries into those of one. s: natural logarithms, float32 [tokens,
    heads]."""
    values, logs = fa3_kernels.merge(v_a, s_a.float(), v_b, s_b.float())
    return (
        values if v_merged is None else v_merged.copy_(values),
        logs if s_merged is None else s_merged.copy_(logs),
    )


def flash_attn_varlen_func(*_: object, **__: object) -> Any:
    """Not driven: prefill and embeddings call it."""
    raise NotImplementedError(f"{MODULE}.flash_attn_varlen_func has no stand-in")


EXPORTS = (flash_attn_with_kvcache, flash_attn_varlen_func, get_scheduler_metadata)


@contextmanager
def importable() -> Iterator[None]:
    """From here on `from sgl_kernel.flash_attn import ...` finds this. `import sgl_kernel` works while entered only, if
    it does not anyhow: at any other time, who asks for its other parts finds none."""
    sys.modules[MODULE] = _module(MODULE, EXPORTS)
    present = "sgl_kernel" in sys.modules or importlib.util.find_spec("sgl_kernel") is not None
    if not present:
        sys.modules["sgl_kernel"] = _module("sgl_kernel", (merge_state_v2,))
    try:
        yield
    finally:
        if not present:
            del sys.modules["sgl_kernel"]


def _module(name: str, functions: Iterable[Callable[..., Any]]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update({function.__name__: function for function in functions})
    return module
