"""Deterministic inference: how small attention's splits are, and, without a GPU, stand-ins for kernels that it adds.

sglang then gives products, norms and softmaxes to Triton kernels whose sums do not depend on the batch, and asks for an
accelerator that they are for. On the emulated engine PyTorch's norms and softmaxes take their place, which go row by
row, and products that are made row by row.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from runners.engines.standins import products

# Before, sglang captures no prefill with it (cuda_graph_hook.py, 0.5.21:239).
PREFILLED_SINCE = "0.5.22"
# The contexts of cases have several splits then, none shorter than a kernel's block. sglang's own is 256.
_TILE = {"SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE": "32"}
# The operator that hashes seeds on a CPU, and columns of a program of the kernel that does elsewhere.
_HASHES, _BLOCK = "murmur_hash32_cpu", 1024
# The registration of that operator, which lasts as long as the process.
_REGISTERED: list[torch.library.Library] = []


def prepare(device: str) -> None:
    """To be called before the workers of such a setup are built."""
    os.environ.update(_TILE)
    if device == "cpu":
        kernels: Any = importlib.import_module("sglang.srt.batch_invariant_ops")
        kernels.enable_batch_invariant_mode = products.by_row
        _register_hash()


def _register_hash() -> None:
    """Since 0.5.21 native code for a CPU hashes seeds; sglang's kernel for a GPU does it here, as in earlier ones."""
    if _REGISTERED:
        return
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    _REGISTERED.append(library)
    library.define(f"{_HASHES}(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl(_HASHES, _hash, "CPU")


def _hash(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    kernels: Any = importlib.import_module("sglang.kernels.ops.sampling.murmur_hash")
    hashed = torch.empty((len(seed), len(col_indices)), dtype=torch.uint32)
    grid = (len(seed), -(-len(col_indices) // _BLOCK))
    kernels.murmur_hash32_kernel[grid](seed, positions, col_indices, hashed, *hashed.shape, BLOCK_SIZE=_BLOCK)
    return hashed
