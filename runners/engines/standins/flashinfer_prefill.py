"""flashinfer's prefill wrappers on CPU tensors: several queries a sequence, over a paged cache or over keys as they
come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runners.engines.standins.flashinfer_kernels import paged_attention, ragged_attention
from runners.engines.standins.flashinfer_wrapper import Wrapper, all_there, result, unpacked


class _Prefill(Wrapper):
    """Several queries a sequence."""

    def _check_rows(self, qo_indptr: Tensor) -> None:
        last = self._qo_indptr_last = int(qo_indptr[-1])
        if not self._use_cuda_graph:
            return
        if self._max_total_num_rows is None:
            self._max_total_num_rows = last
        if last > self._max_total_num_rows:
            raise ValueError(
                f"The total number of rows in qo_indptr {last} in cuda graph mode cannot exceed the "
                f"number of rows set during initialization {self._max_total_num_rows}."
            )
        if len(qo_indptr) - 1 != self._fixed_batch_size:
            raise ValueError(
                f"The batch size should be fixed in cuda graph mode, the runtime batch size {len(qo_indptr) - 1} "
                f"mismatches the batch size {self._fixed_batch_size} set during initialization."
            )

    _max_total_num_rows: int | None = None
    _qo_indptr_last: int | None = None
    _fixed_batch_size = 0

    def _check_query(self, q: Tensor) -> None:
        if len(q) != self._qo_indptr_last:
            raise ValueError(f"q.shape[0] ({len(q)}) does not match qo_indptr[-1] ({self._qo_indptr_last})")


class Schedule:
    """The part of the compiled module that divides the work among programs: it notes what it is given to divide."""

    def __init__(self, planned: Callable[[Tensor, Tensor], None]) -> None:
        self._planned = planned

    def plan(self, *arguments: Any) -> tuple[int, ...]:
        """Behind three workspaces: where queries and keys of each sequence begin, on the host. What is compiled takes
        their memory for numbers of 32 bits, whatever they are."""
        queries, keys = arguments[3:5]
        for starts in (queries, keys):
            if starts.dtype != torch.int32:
                raise ValueError(f"row starts of a plan are read as int32, and these are {starts.dtype}")
        self._planned(keys, queries)
        return ()


class BatchPrefillWithPagedKVCacheWrapper(_Prefill):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        self._take(qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._backend = backend
        self._cached_module: Any = None
        if use_cuda_graph:
            qo_indptr, kv_indptr, _, last = all_there(self._buffers())
            self._fixed_batch_size = len(qo_indptr) - 1
            if len(kv_indptr) != len(qo_indptr) or len(last) != self._fixed_batch_size:
                raise ValueError("paged_kv_indptr_buf and paged_kv_last_page_len_buf should be of batch_size")

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        *,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        **options: Any,
    ) -> None:
        """Copy lengths, indices and mask, into the fixed buffers if there are any."""
        self._check_rows(qo_indptr)
        keys = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
        self._put_mask(custom_mask, qo_indptr.diff() * keys)
        new = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        if not self._use_cuda_graph:
            self._take(*new)
        else:
            if len(paged_kv_indices) > len(self._paged_kv_indices_buf):
                raise ValueError("The length of paged_kv_indices exceeds the allocated buffer size.")
            for buffer, tensor in zip(self._buffers(), new, strict=True):
                buffer[: len(tensor)].copy_(tensor)
        self._planned(options, q_data_type, kv_data_type, (num_qo_heads, num_kv_heads, head_dim_qk), page_size)
        self._plan_on_host(paged_kv_indptr, qo_indptr)
        self._cached_module = Schedule(self._plan_on_host)

    begin_forward = plan

    def _take(self, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, last_page_len: Any) -> None:
        """Under flashinfer's names: sglang has a fast plan of its own, which writes into these."""
        self._qo_indptr_buf, self._paged_kv_indptr_buf = qo_indptr, paged_kv_indptr
        self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf = paged_kv_indices, last_page_len

    def _buffers(self) -> tuple[Any, ...]:
        indptrs = (self._qo_indptr_buf, self._paged_kv_indptr_buf)
        return *indptrs, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
    ) -> Any:
        self._check_query(q)
        key, value = unpacked(paged_kv_cache)
        mask = (self._custom_mask_buf, self._mask_indptr_buf)
        variant = self._variant(q, key, k_scale)
        planned = {"planned_keys": self._planned_keys, "planned_queries": self._planned_queries}
        pair = paged_attention(q, key, value, *self._buffers(), *mask, *variant, zeroed=True, **planned)
        return result(pair, v_scale, return_lse)

    def forward(
        self, q: Tensor, paged_kv_cache: Any, k_scale: float | None = None, v_scale: float | None = None, **options: Any
    ) -> Any:
        self._told(options)
        return self.run(q, paged_kv_cache, k_scale, v_scale)

    def forward_return_lse(
        self, q: Tensor, paged_kv_cache: Any, k_scale: float | None = None, v_scale: float | None = None, **options: Any
    ) -> Any:
        self._told(options)
        return self.run(q, paged_kv_cache, k_scale, v_scale, return_lse=True)


class BatchPrefillWithRaggedKVCacheWrapper(_Prefill):
    """Keys and values as they come, not in a cache."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout, False)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        *,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        **options: Any,
    ) -> None:
        self._check_rows(qo_indptr)
        self._starts = (qo_indptr, kv_indptr)
        self._put_mask(custom_mask, qo_indptr.diff() * kv_indptr.diff())
        self._planned(options, q_data_type, kv_data_type, (num_qo_heads, num_kv_heads, head_dim_qk))

    begin_forward = plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False) -> Any:
        self._check_query(q)
        mask = (self._custom_mask_buf, self._mask_indptr_buf)
        variant = self._variant(q, k, None)
        return result(ragged_attention(q, k, v, *self._starts, *mask, *variant), None, return_lse)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        self._told(options)
        return self.run(q, k, v)

    def forward_return_lse(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        self._told(options)
        return self.run(q, k, v, return_lse=True)
