"""What all releases of sglang have in common: the engine, and the packages that they import."""

from __future__ import annotations

import contextlib
import importlib

from runners.engines.active import engine

__all__ = ["engine", "load"]

# What releases import and takes long to import, with all that is below it. What is not installed is left out.
PACKAGES = (
    *("IPython.display", "aiohttp.web", "compressed_tensors.config", "fastapi", "gguf", "numpy"),
    *("openai.types.responses", "pydantic", "requests", "sympy", "uvicorn", "zmq"),
    *("torch", "torch._inductor.config", "torchvision.io", "triton", "triton.language"),
    *("transformers", "transformers.activations", "transformers.image_processing_utils"),
    *("transformers.modeling_gguf_pytorch_utils", "transformers.modeling_layers"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
)

engine.install()


def load() -> None:
    """Import them, as sessions would: behind the engine."""
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
