"""sglang's FlashAttention 3 backend: its module on a machine without the kernels, and which calls its graphs hold."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from runners.engines.active import engine
from runners.engines.standins import fa3, native_imports
from runners.recording.observer import HarnessError
from runners.releases.backends.paged_calls import Call, calls

# With what is installed, the largest part; bundles leave it out unless they are to have it.
KERNELS = "sgl_kernel.flash_ops"
BACKEND = "sglang.srt.layers.attention.flashattention_backend"
# Where what sglang calls asks whether this GPU has the kernels; since 0.5.11, elsewhere since 0.5.17.
_DISPATCHERS = ("sglang.kernels.ops.attention.flash_attention_v3", "sglang.jit_kernel.flash_attention_v3")
# A function that is compiled as a whole where there is a GPU.
_COMPILED = "draft_decode_set_expand_metadata"


def load_backend() -> None:
    """Import the module over the stand-in, have it chosen by its name whatever this machine can do, and leave
    uncompiled what is compiled on a GPU, where it computes the same."""
    with fa3.importable():
        backend: Any = importlib.import_module(BACKEND)
    backend.merge_state_v2 = fa3.merge_state_v2
    compiled = getattr(backend, _COMPILED)
    setattr(backend, _COMPILED, inspect.unwrap(compiled))
    for name in _DISPATCHERS:
        dispatcher: Any = sys.modules.get(name)  # the backend's module imports it
        if dispatcher:
            dispatcher._is_fa3_supported = lambda device=None: True
    registry: Any = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.ATTENTION_BACKENDS["fa3"] = backend.FlashAttentionBackend


@functools.cache
def listen() -> None:
    """Note what this session's graphs will hold: to be called before any attention backend is made. A process that
    serves several setups listens once. HarnessError where a GPU is to run kernels that are not installed."""
    if engine.device == "cuda" and native_imports.stands_in(KERNELS):
        raise HarnessError(
            f"FlashAttention 3's kernels ({KERNELS}) are not installed here; bundles have them with --fa3"
        )
    module: Any = importlib.import_module(fa3.MODULE) if fa3.MODULE not in sys.modules else sys.modules[fa3.MODULE]
    module.flash_attn_with_kvcache = calls.listened(module.flash_attn_with_kvcache, read)


def read(arguments: Mapping[str, Any]) -> tuple[int, Call]:
    return len(arguments["q"]), Call(
        page_table=arguments["page_table"],
        lengths=arguments["cache_seqlens"],
        query_starts=arguments["cu_seqlens_q"],
        page_size=arguments["k_cache"].shape[1],
        causal=arguments["causal"],
        window=tuple(arguments["window_size"]),
        is_part=arguments["return_softmax_lse"],
    )
