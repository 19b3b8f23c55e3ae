"""Stands in for a kernel in TileLang, on CPU tensors: it makes the weights of DeepSeek-V4's streams of a residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from runners.engines import launch_memory


def hc_split_sinkhorn_kernel(streams: int, rounds: int, eps: float) -> Callable[..., None]:
    """sglang's function of this name: the kernel for so many streams, and rounds of scaling rows and columns to 1."""
    return partial(_launch, streams, rounds, eps)


def _launch(streams: int, rounds: int, eps: float, *tensors: torch.Tensor) -> None:
    torch.ops.eagleeye.dsv4_split(*tensors, streams, rounds, eps)


def _split(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    pre: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    streams: int,
    rounds: int,
    eps: float,
) -> None:
    """mixes: float32 [n, (2 + streams) * streams], of which the first are before, the next behind a sublayer."""
    launch_memory.watched()
    parts = (streams, streams, streams * streams)
    values = [
        part * scale[number] + base_part
        for number, (part, base_part) in enumerate(zip(mixes.split(parts, -1), base.split(parts), strict=True))
    ]
    pre.copy_(torch.sigmoid(values[0]) + eps)
    post.copy_(2 * torch.sigmoid(values[1]))
    mixed = torch.softmax(values[2].unflatten(-1, (streams, streams)), -1) + eps
    mixed = mixed / (mixed.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        mixed = mixed / (mixed.sum(-1, keepdim=True) + eps)
        mixed = mixed / (mixed.sum(-2, keepdim=True) + eps)
    comb.copy_(mixed)


_library = torch.library.Library("eagleeye", "FRAGMENT")
_library.define(
    "dsv4_split(Tensor mixes, Tensor scale, Tensor base, Tensor(a!) pre, Tensor(b!) post, Tensor(c!) comb, "
    "int streams, int rounds, float eps) -> ()"
)
_library.impl("dsv4_split", _split, "CPU")
