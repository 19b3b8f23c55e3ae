"""Deterministic inference: how small attention's splits are, and, without a GPU, that nobody else's kernels take the
place of torch's.

sglang then gives products, norms and softmaxes to Triton kernels whose sums do not depend on the batch, and asks for an
accelerator that they are for. On the emulated engine torch does these, whose sums do not depend on it there either.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# The contexts of cases have several splits then, none shorter than a kernel's block. sglang's own is 256.
_TILE = {"SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE": "32"}


def prepare(device: str) -> None:
    """To be called before the workers of such a setup are built."""
    os.environ.update(_TILE)
    if device == "cpu":
        kernels: Any = importlib.import_module("sglang.srt.batch_invariant_ops")
        kernels.enable_batch_invariant_mode = _not_needed


def _not_needed(*_: object, **__: object) -> None:
    pass
