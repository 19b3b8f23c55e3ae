"""The seconds of opening a session, in every release: functions of sglang and of compilers by the part that
they are."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import replace
from typing import Any

from runners.engines.active import engine
from runners.releases.live import Adapter
from tests.tools.parts import Parts

_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
# Packages that are imported only once something is compiled.
_LATE = ("torch.", "tvm_ffi")
_DRAFT = "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker"
# By part: functions that not every release has.
_PARTS: dict[str, tuple[str, ...]] = {
    "arguments": ("sglang.srt.server_args:ServerArgs.__init__",),
    "process groups": (
        f"{_RUNNER}.init_torch_distributed",
        "runners.releases.workers.v0_5_21:init_parallel_runtime",
        "runners.releases.workers.v0_5_21:init_layer_runtime",
    ),
    "model": (f"{_RUNNER}.load_model", "runners.releases.model:fill_weights"),
    "pools": (f"{_RUNNER}.init_memory_pool", f"{_RUNNER}.alloc_memory_pool"),
    "backend": (
        f"{_RUNNER}.init_attention_backend",
        f"{_RUNNER}.init_attention_backends",
        f"{_DRAFT}.init_attention_backend",
        f"{_DRAFT}.init_attention_backends",
    ),
    "cublas": (f"{_RUNNER}.init_cublas",),
    "dynamo": ("torch._dynamo.convert_frame:_compile",),
    "inductor": ("torch._inductor.compile_fx:compile_fx",),
    "triton compile": ("triton.runtime.jit:JITFunction._do_compile",),
    "triton load": ("triton.compiler.compiler:CompiledKernel._init_handles",),
    "flashinfer modules": ("flashinfer.jit.core:JitSpec.build_and_load",),
    # Built by the first that asks, and kept on disk.
    "sglang's kernels": ("tvm_ffi.cpp:load_inline", "tvm_ffi.cpp:load", "tvm_ffi:load_module"),
    "collector": ("gc:collect",),
}


def timed(parts: Parts) -> None:
    """From here on the time of these functions is that of their parts, and the time of imports is `imports`."""
    imports: Any = sys.modules["_frozen_importlib"]
    imports._find_and_load = parts.of("imports", imports._find_and_load)
    for part, functions in _PARTS.items():
        for place in functions:
            _time(parts, part, place)


def _time(parts: Parts, part: str, place: str) -> None:
    module, _, path = place.partition(":")
    if module.startswith(_LATE) and engine.device == "cuda":
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # What is not there now, this release or this engine does without.
    owner: Any = sys.modules.get(module)
    *classes, name = path.split(".")
    for inner in classes:
        owner = getattr(owner, inner, None)
    if name in vars(owner or object):
        setattr(owner, name, parts.of(part, vars(owner)[name]))


def device_started(parts: Parts) -> None:
    """Start the device, which the first that asks for it would do."""
    if engine.device == "cuda":
        import torch

        with parts.part("CUDA context"):
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()


def timed_adapter(parts: Parts, adapter: Adapter) -> Adapter:
    """The same adapter: what building and capturing take besides their parts are parts of their own."""
    build, capture = parts.of("build", adapter.build), parts.of("capture", adapter.capture)
    return replace(adapter, build=build, capture=capture)
