"""The attention backend of full layers, where a backend of two has others for recurrent ones."""

from __future__ import annotations

from typing import Any


def of_full_layers(backend: Any) -> Any:
    """The backend itself, or the one that HybridLinearAttnBackend has for its full layers: the metadata lies there."""
    return getattr(backend, "full_attn_backend", backend)
