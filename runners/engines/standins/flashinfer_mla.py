"""flashinfer's wrapper for latent attention and its kernel, on CPU tensors.

The kernel is handed the plan, which the host makes, and of the device's numbers the KV indices alone: where queries and
keys of a sequence begin, and how many keys it has, is what the plan says (flashinfer 0.6.12, mla.py).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from runners.engines import launch_memory, touched
from runners.engines.standins.dense import Pair, attention, memory_from, seen_keys, whole
from runners.engines.standins.flashinfer_kernels import INFINITY

KERNEL = "mla_paged_attention"


def _attended(
    query: Tensor,
    latents: Tensor,
    rotated: Tensor,
    indices: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    lengths: Tensor,
    causal: bool,
    scale: float,
) -> Pair:
    """query: [tokens, heads, latent and rotary part]; latents, rotated: the two parts of the cache, [slots, 1, size];
    indices: KV slots, one a token; query_starts, key_starts: [sequences + 1], lengths: [sequences], the plan's, on the
    host. Gives [tokens, heads, latent] and base-2 logarithms [tokens, heads]; NaN for queries of no sequence."""
    launch_memory.watched()
    out = query.new_full((*query.shape[:2], latents.shape[-1]), math.nan)
    logs = query.new_full(query.shape[:2], math.nan, dtype=torch.float32)
    memory, firsts = memory_from(indices), whole(key_starts)
    for sequence, (first, end) in enumerate(itertools.pairwise(whole(query_starts).clip(min=0).tolist())):
        rows = query[first:end]
        begin, count = int(firsts[sequence]), max(0, int(lengths[sequence]))
        if not len(rows) or begin < 0 or begin + count > memory.numel():
            continue
        touched.reads(memory[begin : begin + count])
        slots = memory[begin : begin + count].long()
        if count and not 0 <= int(slots.min()) <= int(slots.max()) < len(latents):
            continue
        for part in (latents, rotated):
            touched.reads_rows(part, slots)
        values = latents[slots]
        keys = torch.cat((values, rotated[slots]), -1)
        seen = seen_keys(len(rows), count, causal=causal)
        out[first:end], logs[first:end] = attention(rows, keys, values, seen, scale=scale, soft_cap=0.0)
    return out, (logs * math.log2(math.e)).masked_fill(logs == -math.inf, -INFINITY)


_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define(
    f"{KERNEL}(Tensor query, Tensor latents, Tensor rotated, Tensor indices, Tensor query_starts, Tensor key_starts, "
    "Tensor lengths, bool causal, float scale) -> (Tensor, Tensor)"
)
_library.impl(KERNEL, _attended, "CPU")
attended = torch.ops.eagleeye.mla_paged_attention.default


class Plan:
    """The plan of a wrapper: what the compiled module keeps of it. In a graph at fixed addresses. Mutable."""

    def __init__(self, queries: Tensor, keys: Tensor, lengths: Tensor) -> None:
        self.queries, self.keys, self.lengths = (part.to("cpu", copy=True) for part in (queries, keys, lengths))

    def plan(self, *arguments: Any) -> tuple[int, ...]:
        """Behind three workspaces: row starts of queries and keys, and lengths, on the host."""
        for kept, part in zip((self.queries, self.keys, self.lengths), arguments[3:6], strict=True):
            if part.dtype != torch.int32:
                raise ValueError(f"a plan's numbers are read as int32, and these are {part.dtype}")
            kept[: len(part)].copy_(part[: len(kept)])
        return ()


class BatchMLAPagedAttentionWrapper:
    """The one wrapper for decode, several queries a sequence, and prefill."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor | None = None,
        kv_indptr: Tensor | None = None,
        kv_indices: Tensor | None = None,
        kv_len_arr: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        self.device = float_workspace_buffer.device
        self._use_cuda_graph = use_cuda_graph
        # Room for intermediate results and schedules; named in calls, never used.
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = float_workspace_buffer[:0]
        self._qo_indptr_buf: Any = qo_indptr
        self._kv_indptr_buf: Any = kv_indptr
        self._kv_indices_buf: Any = kv_indices
        self._kv_len_arr_buf: Any = kv_len_arr
        self._cached_module: Any = None

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """Copy starts, lengths and indices, into the fixed buffers if there are any."""
        if page_size != 1:
            raise NotImplementedError(f"pages of {page_size} tokens have no stand-in")
        if self._use_cuda_graph:
            self._qo_indptr_buf.copy_(qo_indptr)
            self._kv_indptr_buf.copy_(kv_indptr)
            self._kv_indices_buf[: len(kv_indices)].copy_(kv_indices)
            self._kv_len_arr_buf.copy_(kv_len_arr)
        else:
            self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr, kv_indptr
            self._kv_indices_buf, self._kv_len_arr_buf = kv_indices, kv_len_arr
        self._causal, self._page_size, self._sm_scale = causal, page_size, sm_scale
        self._planned = (num_heads, head_dim_ckv, head_dim_kpe, q_data_type, kv_data_type)
        numbers = (qo_indptr, kv_indptr, kv_len_arr)
        if self._cached_module is None or not self._use_cuda_graph:
            self._cached_module = Plan(*numbers)
        else:
            self._cached_module.plan(None, None, None, *(part.cpu() for part in numbers))

    begin_forward = plan

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv_cache: Tensor,
        kpe_cache: Tensor,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        planned: Plan | None = self._cached_module
        if planned is None:
            raise RuntimeError("run() before plan()")
        sizes = (q_nope.shape[1], q_nope.shape[2], q_pe.shape[2], q_nope.dtype, ckv_cache.dtype)
        if sizes != self._planned:
            raise ValueError(f"planned for heads, sizes and types {self._planned}, not {sizes}")
        values, logs = attended(
            torch.cat((q_nope, q_pe), -1),
            ckv_cache,
            kpe_cache,
            self._kv_indices_buf,
            planned.queries,
            planned.keys,
            planned.lengths,
            self._causal,
            self._sm_scale,
        )
        values = values if out is None else out.copy_(values)
        return (values, logs if lse is None else lse.copy_(logs)) if return_lse else values


def planned(wrapper: BatchMLAPagedAttentionWrapper) -> tuple[Plan, Tensor]:
    """The plan of a wrapper and the KV indices beside it: what its kernel reads."""
    return wrapper._cached_module, wrapper._kv_indices_buf
