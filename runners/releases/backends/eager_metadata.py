"""Attention's metadata in an eager pass without a graph beside it, under the names that graphs' metadata has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.backends.full_layers import of_full_layers
from runners.releases.options.sliding import as_full

_FULL, _SLIDING = ("kv_indptr", "kv_indices", "qo_indptr"), ("window_kv_indptr", "window_kv_indices")


def eager_metadata(setup: Setup, backend: Any, pool: Any = None) -> Mapping[str, torch.Tensor]:
    """The metadata of the attention backend that planned the pass, [calls, ...]: of one for several draft steps, a call
    each. pool: the KV cache, which sliding layers with KV slots of their own need.

    Triton's alone: the others hold theirs in their kernels' plans, and what they read is seen as it is read.
    """
    if setup.backend != "triton" or backend is None:
        return {}
    steps = getattr(backend, "attn_backends", None)
    planned = steps[: setup.num_steps - 1] if steps else [backend]
    metadata = [of_full_layers(each).forward_metadata for each in planned]
    names = (*_FULL, *(_SLIDING if setup.window and not steps else ()))
    by_name = {name: [getattr(each, name, None) for each in metadata] for name in names}
    held_by_name = {name: rows for name, rows in by_name.items() if all(isinstance(r, torch.Tensor) for r in rows)}
    for indptr, indices in (_FULL[:2], _SLIDING):
        if indices in held_by_name:
            held_by_name[indices] = list(map(_planned, held_by_name[indptr], held_by_name[indices]))
    tensors = {name: _stacked(rows) for name, rows in held_by_name.items()}
    if setup.swa and _SLIDING[1] in tensors:
        tensors[_SLIDING[1]] = as_full(tensors[_SLIDING[1]], pool)
    return tensors


def _planned(indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """indices [entries], with no KV slot behind the last entry of the plan: what is allocated there is unwritten."""
    places = torch.arange(len(indices), device=indices.device)
    return torch.where(places < indptr[-1], indices, -1)


def _stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows of several lengths, filled up with what is no KV slot."""
    longest = max(len(row) for row in rows)
    return torch.stack([torch.cat((row, row.new_full((longest - len(row),), -1))) for row in rows])
