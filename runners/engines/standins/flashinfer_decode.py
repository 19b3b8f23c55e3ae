"""flashinfer's decode wrapper and its fast plan, on CPU tensors: one query a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runners.engines.launch_memory import STARTS, report
from runners.engines.standins.flashinfer_kernels import paged_attention
from runners.engines.standins.flashinfer_wrapper import Wrapper, all_there, result, unpacked


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """One query a sequence."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        self._paged_kv_indptr_buf: Any = paged_kv_indptr_buffer
        self._paged_kv_indices_buf: Any = paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf: Any = paged_kv_last_page_len_buffer
        self.use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
            indptr, _, last = all_there(buffers)
            self._fixed_batch_size = len(last)
            if len(indptr) != self._fixed_batch_size + 1:
                raise ValueError("The size of paged_kv_indptr_buffer should be batch_size + 1")
            self._rows = torch.arange(self._fixed_batch_size + 1, dtype=torch.int32)

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        data_type: Any = None,
        **options: Any,
    ) -> None:
        """Copy lengths and indices, into the fixed buffers if there are any."""
        self._check(indices, last_page_len)
        if self._use_cuda_graph:
            self._paged_kv_indptr_buf.copy_(indptr)
            self._paged_kv_last_page_len_buf.copy_(last_page_len)
            self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        else:
            self._take(indptr, indices, last_page_len)
        self._plan_on_host(indptr)
        heads = (num_qo_heads, num_kv_heads, head_dim)
        self._planned(options, q_data_type or data_type, kv_data_type or data_type, heads, page_size)

    begin_forward = plan

    def _check(self, indices: Tensor, last_page_len: Tensor) -> None:
        if not self._use_cuda_graph:
            return
        if len(last_page_len) != self._fixed_batch_size:
            raise ValueError(
                f"The batch size should be fixed in cudagraph mode, the runtime batch size {len(last_page_len)} "
                f"mismatches the batch size set during initialization {self._fixed_batch_size}"
            )
        if len(indices) > len(self._paged_kv_indices_buf):
            raise ValueError("The size of indices should be less than or equal to the allocated buffer")

    def _take(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor) -> None:
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = indptr, indices
        self._paged_kv_last_page_len_buf = last_page_len
        self._rows = torch.arange(len(last_page_len) + 1, dtype=torch.int32)

    def forward(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        **options: Any,
    ) -> Any:
        self._told(options)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
    ) -> Any:
        if self._paged_kv_last_page_len_buf is None:
            raise ValueError("run before anything was planned")
        if len(q) != len(self._paged_kv_last_page_len_buf):
            raise ValueError(f"{len(q)} rows of q for a batch of {len(self._paged_kv_last_page_len_buf)}")
        key, value = unpacked(paged_kv_cache)
        where = (self._rows, self._paged_kv_indptr_buf, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf)
        _, *variant = self._variant(q, key, k_scale)
        pair = paged_attention(q, key, value, *where, None, None, False, *variant, planned_keys=self._planned_keys)
        return result(pair, v_scale, return_lse)


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    *,
    q_data_type: Any = None,
    kv_data_type: Any = None,
    data_type: Any = None,
    global_override_indptr_cpu: Tensor | None = None,
    **options: Any,
) -> None:
    """A plan for fixed buffers that the caller has already written: it copies nothing."""
    self._check(indices, last_page_len)
    if not self._use_cuda_graph:
        self._take(indptr, indices, last_page_len)
    starts = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
    if len(starts) != len(last_page_len) + 1:  # of which lengths are made, a row each
        report(f"{STARTS} indptr in fast_decode_plan", len(starts), len(last_page_len) + 1)
    self._plan_on_host(starts)
    heads = (num_qo_heads, num_kv_heads, head_dim)
    self._planned(options, q_data_type or data_type or "float16", kv_data_type or data_type, heads, page_size)
