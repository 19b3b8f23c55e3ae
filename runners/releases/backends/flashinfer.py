"""sglang's flashinfer backend on a machine without flashinfer: its module, imported over the stand-in wrappers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from runners.engines.standins import flashinfer

BACKEND = "sglang.srt.layers.attention.flashinfer_backend"


def load_backend() -> None:
    """Import the module as if flashinfer were there, again where it came with others (since 0.5.23). The rest of
    sglang sees no flashinfer: it would ask for more."""
    utils: Any = importlib.import_module("sglang.srt.utils")
    is_available = utils.is_flashinfer_available
    utils.is_flashinfer_available = lambda: True
    loaded = sys.modules.get(BACKEND)
    try:
        with flashinfer.importable():
            if loaded is None:
                importlib.import_module(BACKEND)
            else:
                _again(loaded)
    finally:
        utils.is_flashinfer_available = is_available


def _again(module: ModuleType) -> None:
    """Import it anew, and give those who have taken its classes the new ones."""
    before = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == BACKEND}
    importlib.reload(module)
    for name, other in list(sys.modules.items()):
        if name.startswith("sglang."):
            for taken, old in before.items():
                if vars(other).get(taken) is old:
                    vars(other)[taken] = vars(module)[taken]
