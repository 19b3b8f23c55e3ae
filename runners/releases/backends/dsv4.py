"""sglang's backend for DeepSeek-V4 without compiled kernels: modules answer as on a GPU, switches of its own choose the
forms in PyTorch or Triton where there are any, and the rest is stood in for."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from runners.engines.standins import deep_gemm, dsv4_compiled, dsv4_mhc, flash_mla
from runners.recording.observer import Unsupported
from runners.releases.options import quantised

# Switches between compiled kernels and other forms.
_OFF = (
    *("SGLANG_OPT_USE_TILELANG_MHC_PRE", "SGLANG_OPT_USE_TILELANG_MHC_POST", "SGLANG_OPT_DEEPGEMM_HC_PRENORM"),
    *("SGLANG_OPT_FUSE_MHC_POST_PRE", "SGLANG_OPT_USE_JIT_INDEXER_METADATA", "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL"),
    *("SGLANG_OPT_DSV4_NONPAGED_INDEXER", "SGLANG_OPT_FP8_WO_A_GEMM", "SGLANG_OPT_USE_FUSED_HASH_TOPK"),
    *("SGLANG_OPT_USE_FUSED_GATE_TOPK", "SGLANG_OPT_USE_GATE_TOPK_JIT", "SGLANG_OPT_USE_TOPK_V2"),
    # Streams beside the one that is captured, which the emulated engine does not follow.
    "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP",
)
_MODEL, _DRAFT = "sglang.srt.models.deepseek_v4", "sglang.srt.models.deepseek_v4_nextn"
_NEEDED = ("sglang.kernels.ops.attention.dsv4", "sglang.srt.layers.attention.deepseek_v4_backend", _MODEL, _DRAFT)
# Modules that ask whether they run on a GPU of NVIDIA's.
_ASK = (_MODEL, "sglang.srt.layers.attention.dsv4", "sglang.srt.layers.attention.deepseek_v4")
_COMPILING = "sglang.kernels.ops."


def prepare(device: str) -> None:
    """Prepare sglang; call this before the workers of such a setup are built."""
    if device != "cpu":
        raise Unsupported("DeepSeek-V4 is driven on the emulated engine alone: no bundle has its compiled kernels")
    os.environ |= dict.fromkeys(_OFF, "0")
    quantised.prepare(device)
    _stand_in()


@functools.cache
def _stand_in() -> None:
    """Once a process."""
    flash_mla.importable()
    deep_gemm.importable(deep_gemm.fp8_paged_mqa_logits)
    for name in _NEEDED:
        importlib.import_module(name)
    streams: Any = importlib.import_module("sglang.kernels.ops.layernorm.mhc")
    streams.hc_split_sinkhorn_kernel = dsv4_mhc.hc_split_sinkhorn_kernel
    rotary: Any = importlib.import_module("sglang.srt.layers.rotary_embedding")
    model, draft = sys.modules[_MODEL], sys.modules[_DRAFT]
    # On a CPU sglang knows another kind of rotation alone.
    vars(model)["get_rope_wrapper"] = lambda *args, device=None, **named: rotary.get_rope(*args, **named)
    for module in (model, draft):
        vars(module)["DeepseekV4DecoderLayer"] = vars(model)["DeepseekV4CudaDecoderLayer"]
    for name, module in list(sys.modules.items()):
        names = vars(module)
        if name.startswith(_ASK):
            answers = {"_is_cuda": True, "is_cuda": lambda: True, "_is_cpu": False}
            names.update({predicate: answer for predicate, answer in answers.items() if predicate in names})
        if name.startswith(_COMPILING) and "load_jit" in names:
            names["load_jit"] = dsv4_compiled.loaded
