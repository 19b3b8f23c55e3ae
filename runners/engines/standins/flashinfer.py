"""Stands in for the part of flashinfer that sglang's backends of that name and those over TensorRT-LLM's kernels use:
the same wrappers and functions, on CPU tensors.

Signatures and buffers are those of flashinfer 0.6.12. A plan checks and copies what flashinfer's does, but makes no
schedule: one that is out of date does not show.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from runners.engines.standins import trtllm
from runners.engines.standins.flashinfer_decode import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan
from runners.engines.standins.flashinfer_kernels import merge_state
from runners.engines.standins.flashinfer_mla import BatchMLAPagedAttentionWrapper
from runners.engines.standins.flashinfer_prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
)

# What each module of it is asked for.
EXPORTS = {
    "flashinfer": {
        "BatchDecodeWithPagedKVCacheWrapper": BatchDecodeWithPagedKVCacheWrapper,
        "BatchMLAPagedAttentionWrapper": BatchMLAPagedAttentionWrapper,
        "BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper,
        "BatchPrefillWithRaggedKVCacheWrapper": BatchPrefillWithRaggedKVCacheWrapper,
        "fast_decode_plan": fast_decode_plan,
    },
    "flashinfer.cascade": {"merge_state": merge_state},
    **{name: {function.__name__: function for function in functions} for name, functions in trtllm.EXPORTS.items()},
}


@contextmanager
def importable() -> Iterator[None]:
    """While entered, `import flashinfer` finds this; at any other time, who asks for flashinfer finds none."""
    before = {name: sys.modules.get(name) for name in EXPORTS}
    modules = {name: _module(name) for name in EXPORTS}
    for name, part in modules.items():
        package, _, own_name = name.rpartition(".")
        if package:
            setattr(modules[package], own_name, part)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(EXPORTS[name])
    return module
