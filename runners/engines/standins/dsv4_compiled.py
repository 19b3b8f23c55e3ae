"""DeepSeek-V4's kernels that sglang compiles with nvcc: by the name of each the functions that stand in for those that
sglang calls. Any other is refused when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from runners.engines.standins import dsv4_compress, dsv4_norms

# The place of the page's size among the arguments that a kernel is compiled for.
_PAGE_SIZE = 3


def _rotate(q: Tensor, k: Tensor | None, freqs: Tensor, positions: Tensor, inverse: bool) -> None:
    for rows in (q, k):
        if rows is not None:
            dsv4_norms.rotate(rows, freqs, positions, inverse)


def _plan_prefill(
    requests: Tensor,
    table: Tensor,
    mapping: Tensor,
    lengths: Tensor,
    extends: Tensor,
    pinned: Tensor,
    queries: int,
    ratio: int,
    window_page: int,
    ring: int,
    by_request: bool,
    in_graph: bool,
) -> Any:
    """Plans as long as there are queries, as those of a graph are: what they are longer by says nothing."""
    where = (ratio, window_page, ring, by_request)
    return dsv4_compress.plan_prefill(requests, table, mapping, lengths, extends, queries, *where)


def _always(**functions: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_: SimpleNamespace(**functions)


def _by_page(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel compiled for one size of page: the last of its operator's arguments."""
    return lambda *made_for: SimpleNamespace(forward=lambda *values: function(*values, int(made_for[_PAGE_SIZE])))


_COMPRESS = _always(decode=dsv4_compress.decode, prefill=dsv4_compress.prefill)
STANDINS: Mapping[str, Callable[..., Any]] = {
    "main_q_norm_rope": _always(forward=dsv4_norms.queries),
    "main_k_norm_rope_flashmla": _by_page(dsv4_norms.keys),
    "fused_rope": _always(forward=_rotate),
    "main_q_indexer_rope_hadamard_quant": _always(forward=dsv4_norms.indexer_queries),
    "compress_plan": _always(plan_prefill=_plan_prefill, plan_decode=dsv4_compress.plan_decode),
    "compress_4_v2": _COMPRESS,
    "compress_128_v2": _COMPRESS,
    "fused_norm_rope_v2": _by_page(dsv4_compress.store),
}


def loaded(name: str, *arguments: Any, cuda_wrappers: Sequence[tuple[str, str]] = (), **_: Any) -> Any:
    """Replaces sglang's load_jit. name: as it is there, behind a prefix. arguments: what it is compiled for."""
    made = STANDINS.get(name.removeprefix("dpsk_v4_"))
    if made is not None:
        return made(*arguments)
    return SimpleNamespace(**{function: partial(_refuse, name, function) for function, _ in cuda_wrappers})


def _refuse(name: str, function: str, *_: Any) -> Any:
    raise NotImplementedError(f"{name}.{function} is compiled CUDA and has no stand-in")
