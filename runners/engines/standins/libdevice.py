"""Functions of CUDA's libdevice that Triton's interpreter lacks, in Triton's own language."""

from __future__ import annotations

from typing import Any

import triton.language as tl


def log1p(x: Any) -> Any:
    """The logarithm of 1 + x, as exact for a small x as for any other: what the sum rounds off is made up for."""
    whole = 1.0 + x
    is_one = whole == 1.0
    return tl.where(is_one, x, tl.log(whole) * x / tl.where(is_one, 1.0, whole - 1.0))
