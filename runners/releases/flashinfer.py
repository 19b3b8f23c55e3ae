"""sglang's flashinfer backend on a machine without flashinfer: its module, imported over the stand-in wrappers."""

from __future__ import annotations

import importlib
from typing import Any

from runners.engines.standins import flashinfer

BACKEND = "sglang.srt.layers.attention.flashinfer_backend"


def load_backend() -> None:
    """Import the module as if flashinfer were there. No other part of sglang is told so: it would ask for more."""
    utils: Any = importlib.import_module("sglang.srt.utils")
    asked = utils.is_flashinfer_available
    utils.is_flashinfer_available = lambda: True
    try:
        with flashinfer.importable():
            importlib.import_module(BACKEND)
    finally:
        utils.is_flashinfer_available = asked
