"""Keys and values of eight bits: without a GPU, that sglang does not take the machine for one that serves on CPUs.

Where it does, it wants other kernels for them (0.5.19 or later).
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_ASKING = ("sglang.srt.mem_cache.kv_cache_dtype", "sglang.srt.mem_cache.kv_cache_configurator")


class _NoCpu:
    """sglang's platform, but for what it is."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cpu(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def prepare(device: str) -> None:
    """To be called before the workers of such a setup are built."""
    for name in _ASKING if device == "cpu" else ():
        if importlib.util.find_spec(name):
            module: Any = importlib.import_module(name)
            if hasattr(module, "current_platform") and not isinstance(module.current_platform, _NoCpu):
                module.current_platform = _NoCpu(module.current_platform)
