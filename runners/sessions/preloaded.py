"""The imports that all releases of sglang have in common, made with this module: the engine, and their packages."""

from __future__ import annotations

import contextlib
import importlib

from runners.engines.active import engine

# What releases import and takes long to import, with all that is below it. What is not installed is left out.
PACKAGES = (
    *("IPython.display", "aiohttp.web", "compressed_tensors.config", "fastapi", "gguf", "numpy"),
    *("openai.types.responses", "pydantic", "requests", "sympy", "uvicorn", "zmq"),
    *("torch", "torch._inductor.config", "torchvision.io", "triton", "triton.language"),
    *("transformers", "transformers.activations", "transformers.image_processing_utils"),
    *("transformers.modeling_gguf_pytorch_utils", "transformers.modeling_layers"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
)

# As for sessions: before Dynamo makes its table of functions, and torchvision looks for its operators.
engine.install()
for name in PACKAGES:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
