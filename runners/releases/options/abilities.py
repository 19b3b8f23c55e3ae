"""The platform's abilities: without a GPU, that sglang launches the Triton kernels that it launches with one.

Where the platform says that it has no Triton (since 0.5.22), torch allocates pages, writes the request table, and
stores rows of latent attention with a mask, which no capture can hold. For these rows a GPU of SM90 has a compiled
kernel that takes the same arguments; Triton's is sglang's own fallback.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_PLATFORMS = "sglang.srt.platforms"


def prepare(device: str) -> None:
    """To be called before workers are built."""
    if device != "cpu" or not importlib.util.find_spec(_PLATFORMS):
        return
    kind: Any = type(importlib.import_module(_PLATFORMS).current_platform)
    abilities = getattr(kind, "capabilities", None)
    if abilities is None or getattr(abilities, "supports_triton", True):
        return
    fields = {name: getattr(abilities, name) for name in abilities.__struct_fields__}
    kind.capabilities = type(abilities)(**{**fields, "supports_triton": True})
