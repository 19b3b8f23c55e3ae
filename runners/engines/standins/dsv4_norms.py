"""Stands in for DeepSeek-V4's compiled kernels that norm and rotate queries and keys, on CPU tensors.

freqs: float32 [positions, 64], of each pair of numbers a cosine and a sine.
"""

from __future__ import annotations

import torch

from runners.engines import launch_memory, touched
from runners.engines.standins import dsv4_rows
from runners.engines.standins.dsv4_rows import ROTARY


def normed(rows: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """float32."""
    rows = rows.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return rows if weight is None else rows * weight.float()


def rotated(rows: torch.Tensor, freqs: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Their last 64 numbers turned. rows: float32 [n, ..., size]; freqs: [n, 64]."""
    kept, turned = rows[..., :-ROTARY], rows[..., -ROTARY:].unflatten(-1, (-1, 2))
    cosine, sine = freqs.view(len(rows), *(1,) * (rows.dim() - 2), ROTARY // 2, 2).unbind(-1)
    sine = -sine if inverse else sine
    real, other = turned.unbind(-1)
    both = torch.stack((real * cosine - other * sine, real * sine + other * cosine), -1)
    return torch.cat((kept, both.flatten(-2)), -1)


def hadamard(rows: torch.Tensor) -> torch.Tensor:
    """The product with an orthonormal Hadamard matrix, over the last dimension, which is a power of two."""
    size, half = rows.shape[-1], 1
    while half < size:
        first, second = rows.unflatten(-1, (-1, 2, half)).unbind(-2)
        rows = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return rows * size**-0.5


def at(freqs: torch.Tensor, positions: torch.Tensor, kernel: str) -> torch.Tensor:
    """The rows of these positions; those that there are not are reported."""
    touched.reads(positions)
    positions = positions.long()
    outside = (positions < 0) | (positions >= len(freqs))
    if outside.any():
        launch_memory.report(f"load outside freqs_cis in {kernel}", int(positions[outside][0]), len(freqs))
    return freqs[positions.clamp(0, len(freqs) - 1)]


def _queries(q: torch.Tensor, out: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, eps: float) -> None:
    launch_memory.watched()
    rows = normed(q, None, eps).to(q.dtype).float() if eps else q.float()
    out.copy_(rotated(rows, at(freqs, positions, "main_q_norm_rope")))


def _keys(
    kv: torch.Tensor,
    weight: torch.Tensor,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    eps: float,
    page_size: int,
) -> None:
    launch_memory.watched()
    rows = rotated(normed(kv, weight, eps), at(freqs, positions, "main_k_norm_rope_flashmla"))
    dsv4_rows.put(cache, page_size, slots, rows, "main_k_norm_rope_flashmla")


def _rotate(rows: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, inverse: bool) -> None:
    launch_memory.watched()
    rows.copy_(rotated(rows.float(), at(freqs, positions, "fused_rope"), inverse=inverse))


def _indexer_queries(
    q: torch.Tensor,
    out: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    scale: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    launch_memory.watched()
    rows = hadamard(rotated(q.float(), at(freqs, positions, "main_q_indexer_rope_hadamard_quant")))
    each = rows.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    out.copy_((rows / each).clamp(-448.0, 448.0))
    weights.copy_(weight.float()[..., None] * scale * each)


_POSITIONED = "Tensor freqs, Tensor positions"
_library = torch.library.Library("eagleeye", "FRAGMENT")
for _name, _arguments, _body in (
    ("dsv4_queries", f"Tensor q, Tensor(a!) out, {_POSITIONED}, float eps", _queries),
    (
        "dsv4_keys",
        f"Tensor kv, Tensor weight, {_POSITIONED}, Tensor slots, Tensor(a!) cache, float eps, int page_size",
        _keys,
    ),
    ("dsv4_rotate", f"Tensor(a!) rows, {_POSITIONED}, bool inverse", _rotate),
    (
        "dsv4_indexer_queries",
        f"Tensor q, Tensor(a!) out, Tensor weight, Tensor(b!) weights, float scale, {_POSITIONED}",
        _indexer_queries,
    ),
):
    _library.define(f"{_name}({_arguments}) -> ()")
    _library.impl(_name, _body, "CPU")

queries = torch.ops.eagleeye.dsv4_queries.default
keys = torch.ops.eagleeye.dsv4_keys.default
rotate = torch.ops.eagleeye.dsv4_rotate.default
indexer_queries = torch.ops.eagleeye.dsv4_indexer_queries.default
