"""sglang's backends that call flashinfer, or TensorRT-LLM's kernels by it, on a machine without flashinfer: their
modules, imported over the stand-ins."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from runners.engines.standins import flashinfer

# Each behind those whose classes it derives its own from.
_NAMES = ("flashinfer", "flashinfer_mla", "trtllm_mla", "trtllm_mha")
BACKENDS = tuple(f"sglang.srt.layers.attention.{name}_backend" for name in _NAMES)


def load_backends() -> None:
    """Import the modules as if flashinfer were there, again where they came with others (since 0.5.23). The rest of
    sglang sees no flashinfer: it would ask for more."""
    utils: Any = importlib.import_module("sglang.srt.utils")
    is_available = utils.is_flashinfer_available
    utils.is_flashinfer_available = lambda: True
    try:
        with flashinfer.importable():
            for name in BACKENDS:
                if name in sys.modules:
                    _again(sys.modules[name])
                else:
                    importlib.import_module(name)
    finally:
        utils.is_flashinfer_available = is_available


def _again(module: ModuleType) -> None:
    """Import it anew, and give those who have taken its classes the new ones."""
    own_name = module.__name__
    before = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == own_name}
    importlib.reload(module)
    for name, other in list(sys.modules.items()):
        if name.startswith("sglang."):
            for taken, old in before.items():
                if vars(other).get(taken) is old:
                    vars(other)[taken] = vars(module)[taken]
