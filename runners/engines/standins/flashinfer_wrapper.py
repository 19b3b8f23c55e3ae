"""The parts that flashinfer's wrappers share, on CPU tensors: what a plan keeps, masks, and refusals.

Values that flashinfer knows and sglang's backend never passes (other position encodings, FP8, multi-item scoring) have
no stand-in and are refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runners.engines import launch_memory


class Wrapper:
    """The state that all wrappers share: the way from scores to weights, which plan() and forward() say, and the rows a
    graph was captured for."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str, use_cuda_graph: bool) -> None:
        if kv_layout != "NHD":
            raise NotImplementedError(f"the stand-in for flashinfer has no {kv_layout} layout")
        self.device = float_workspace_buffer.device
        self._use_cuda_graph = use_cuda_graph
        self._custom_mask_buf: Tensor | None = None
        self._mask_indptr_buf: Tensor | None = None
        self._planned_heads: tuple[int, int, int] | None = None
        self._planned_page_size = 1
        self._page_size: int | None = None  # of the cache, once that was seen
        # What the plan in use was made for, on the host: where each sequence begins, in keys and in queries.
        self._planned_keys: Tensor | None = None
        self._planned_queries: Tensor | None = None
        # Room for intermediate results and schedules; named in calls, never used.
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = float_workspace_buffer[:0]

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def end_forward(self) -> None:
        """Without effect, as in flashinfer."""

    def _planned(
        self,
        options: dict[str, Any],
        q_data_type: Any,
        kv_data_type: Any,
        heads: tuple[int, int, int],
        page_size: int = 1,
    ) -> None:
        """Keep the arguments of plan(). Only a kernel that is planned with a window or a cap looks at it. heads: of
        queries and of keys, and their size. page_size: of a paged cache."""
        self._planned_heads, self._planned_page_size = heads, page_size
        self._compare_pages()
        self._cached_q_data_type, self._cached_kv_data_type = _dtype(q_data_type), _dtype(kv_data_type or q_data_type)
        self._has_window = options.get("window_left", -1) >= 0
        self._has_cap = (options.get("logits_soft_cap") or 0.0) > 0
        self._told(options)

    def _plan_on_host(self, keys: Tensor, queries: Tensor | None = None) -> None:
        """Keep what the host made the plan for: a kernel does its work in parts that this says, whatever the device's
        own numbers are when it runs. In a graph at fixed addresses."""
        keys, queries = keys.to("cpu", copy=True), None if queries is None else queries.to("cpu", copy=True)
        if not self._use_cuda_graph or self._planned_keys is None:
            self._planned_keys, self._planned_queries = keys, queries
            return
        self._planned_keys[: len(keys)].copy_(keys[: len(self._planned_keys)])
        if queries is not None and self._planned_queries is not None:
            self._planned_queries[: len(queries)].copy_(queries[: len(self._planned_queries)])

    def _told(self, options: dict[str, Any]) -> None:
        """Take the options of plan() and, once more, of forward()."""
        for name, value in options.items():
            if name not in _KNOWN and value not in _WITHOUT_EFFECT.get(name, (None,)):
                raise NotImplementedError(f"the stand-in for flashinfer has no {name}={value!r}")
        self._causal = bool(options.get("causal", False))
        self._window_left = options.get("window_left", -1)
        self._cap = options.get("logits_soft_cap") or 0.0
        self._scale = options.get("sm_scale")

    def _variant(self, query: Tensor, key: Tensor, k_scale: float | None) -> tuple[bool, int, float, float]:
        heads = (query.shape[1], key.shape[-2], query.shape[2])
        if self._planned_heads is None:
            raise RuntimeError("run() before plan()")
        if heads != self._planned_heads:
            raise ValueError(
                f"planned for {self._planned_heads} heads of queries and keys, and their size, not {heads}"
            )
        if key.dim() == 4:
            self._page_size = key.shape[1]
            self._compare_pages()
        planned = (self._cached_q_data_type, self._cached_kv_data_type)
        if (query.dtype, key.dtype) != planned:
            raise ValueError(f"planned for q and kv of {planned}, not {query.dtype} and {key.dtype}")
        scale = 1.0 / math.sqrt(query.shape[-1]) if self._scale is None else self._scale
        window = self._window_left if self._has_window else -1
        cap = self._cap if self._has_cap else 0.0
        return self._causal, window, cap, scale * (1.0 if k_scale is None else k_scale)

    def _compare_pages(self) -> None:
        """A plan for larger pages takes sequences for so many times longer. A graph's plans come without a run."""
        if self._page_size not in (None, self._planned_page_size):
            launch_memory.report("host plan of another page size in paged_attention", self._planned_page_size, 1)

    def _put_mask(self, mask: Tensor | None, lengths: Tensor) -> None:
        """Pack a mask of all sequences, of these numbers of entries, into its buffers; without one and outside of a
        graph, forget the last."""
        if mask is None:
            if not self._use_cuda_graph:
                self._custom_mask_buf = self._mask_indptr_buf = None
            return
        if mask.numel() < int(lengths.sum()):
            # flashinfer packs as many entries as the lengths say, wherever the mask ends.
            launch_memory.report("load outside custom_mask in segment_packbits", mask.numel(), mask.numel())
        packed, starts = _packed(mask, lengths)
        if not self._use_cuda_graph:
            self._custom_mask_buf, self._mask_indptr_buf = packed, starts
        elif self._custom_mask_buf is None or self._mask_indptr_buf is None:
            raise ValueError("a custom mask in cuda graph mode needs custom_mask_buf and mask_indptr_buf")
        else:
            self._custom_mask_buf[: len(packed)].copy_(packed)
            self._mask_indptr_buf.copy_(starts)


# What forward() and plan() take and what is used of it; the rest changes how fast a kernel is, not what it gives.
_KNOWN = frozenset({"causal", "window_left", "logits_soft_cap", "sm_scale", "non_blocking"})
_KNOWN |= {"fixed_split_size", "disable_split_kv"}
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "pos_encoding_mode": ("NONE",),
    "use_fp16_qk_reduction": (False,),
    "token_pos_in_items_len": (0,),
}


def all_there(buffers: tuple[Any, ...]) -> tuple[Any, ...]:
    if not all(isinstance(buffer, Tensor) for buffer in buffers):
        raise ValueError("every buffer should be a torch.Tensor in cuda graph mode")
    return buffers


def _dtype(dtype: Any) -> torch.dtype:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def unpacked(cache: Any) -> tuple[Tensor, Tensor]:
    """Keys and values, each [pages, page size, heads, dim]; sglang's cache is one of pages of one token."""
    key, value = cache if isinstance(cache, tuple) else cache.unbind(1)
    return (key.unsqueeze(1), value.unsqueeze(1)) if key.dim() == 3 else (key, value)


def _packed(mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The mask as bits, each sequence from a byte of its own on, and where each starts."""
    ends = lengths.cumsum(0).tolist()
    flat = mask.reshape(-1).numpy() != 0
    parts = [np.packbits(flat[end - n : end], bitorder="little") for end, n in zip(ends, lengths.tolist(), strict=True)]
    starts = np.cumsum([0, *(part.size for part in parts)])
    return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(starts.astype(np.int32))


def result(pair: tuple[Tensor, Tensor], v_scale: float | None, return_lse: bool) -> Any:
    out, lse = pair
    if v_scale is not None and v_scale != 1.0:
        out = out * v_scale
    return (out, lse) if return_lse else out
