"""The answers by which a scheduler on the emulated engine takes the ways that it takes on a GPU.

The workers of other sessions meet few of these places; a scheduler meets them all.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from runners.engines.active import engine
from runners.engines.standins import native_imports, sampling, tree, verify
from runners.engines.without_device import copied_to_host
from runners.releases.adapters.verify.adapter import stand_in as stand_in_for_trees
from runners.releases.workers.building import as_on_gpus as launched_as_on_gpus
from runners.releases.workers.posing import Posing

# Packages whose modules ask on which device they are, and launch Triton kernels on a GPU.
_ASK = (
    "sglang.srt.speculative.",
    "sglang.srt.managers.",
    "sglang.srt.model_executor.",
    "sglang.srt.mem_cache.",
    "sglang.kernels.ops.speculative.",
)
# With _is_cuda this one compiles a store kernel of its own with nvcc.
_COMPILES = "sglang.srt.mem_cache.memory_pool"
# Callers whose tensors say that they are on a GPU; others would ask for its streams next.
_ON_GPU = (
    "sglang.srt.speculative.",
    "sglang.srt.models.dspark",
    "sglang.kernels.ops.speculative.",
    "sglang.kernels.ops.attention.dsa",
    "sglang.kernels.ops.attention.pad",
    "sglang.srt.layers.attention.triton_ops.dsa_metadata",
    "sglang.srt.layers.attention.triton_ops.pad",
)
# Methods that capture, by their classes: every worker's and every model runner's.
_CAPTURING = ("init_cuda_graphs", "init_device_graphs")
_CAPTURE_IN = (
    ("sglang.srt.managers.tp_worker", "TpModelWorker"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner"),
    ("sglang.srt.speculative.eagle_worker_v2", "EagleDraftWorker"),
    ("sglang.srt.speculative.eagle_worker_v2", "EAGLEWorkerV2"),
    ("sglang.srt.speculative.multi_layer_eagle_worker_v2", "MultiLayerEagleDraftWorker"),
    ("sglang.srt.speculative.frozen_kv_mtp_worker_v2", "FrozenKVMTPDraftWorker"),
)
# The module from which a worker that drafts from a table has what makes a tree's links of its mask.
_TREES = "sgl_kernel.speculative"
# A kernel in NVIDIA's CuTe DSL, of sparse attention, that 0.5.15 imports where it captures draft-extend on a GPU
# (eagle_worker_v2.py, dsa_backend.py), if only to compare the backend's class; later releases import it where it runs.
_IN_CUTE_DSL = "sglang.jit_kernel.dsa.cutedsl_paged_mqa_logits"
# Since 0.5.20 what a break of a prefill graph was given is held on a CPU; before, native code holds none of it.
_HELD_WEAKLY = "sglang.srt.compilation.weak_ref_tensor"
# Native functions for verifying by sampling, and the modules that import them, where they do, only on a GPU.
_SAMPLING = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")
_SAMPLE = ("sgl_kernel", "sglang.srt.speculative.eagle_info_v2", "sglang.srt.speculative.eagle_utils")
# 0.5.21 and 0.5.22 import these where a batch is verified by sampling (eagle_utils.py, 0.5.22:954 and :970).
_RENORM, _BY_SAMPLING = "flashinfer.sampling", "sglang.kernels.ops.speculative.sampling"
# Functions that copy to the host while the device goes on.
_COPIES_TO_HOST = ("async_d2h", "_async_d2h")
_GIBIBYTES = 64.0
# Those of an H100, with so many processors: flashinfer's room for a full prefill graph goes by them.
_HOPPER, _PROCESSORS = (9, 0), 132
# The module that looks for tuned sizes of adapters' kernels by the name of the GPU; it has none for such small models.
_TUNED_BY_NAME, _NAME = ".lora_tuning_config", "NVIDIA H100"


class Device(str):
    """The name of the CPU, which Python code that compares it or looks it up takes for "cuda"."""

    __slots__ = ()

    def __new__(cls) -> Device:
        return super().__new__(cls, "cpu")

    def __eq__(self, other: object) -> bool:
        return other == "cuda"

    def __ne__(self, other: object) -> bool:
        return other != "cuda"

    def __hash__(self) -> int:
        return hash("cuda")


def prepare() -> None:
    """Once a process, before a scheduler is constructed. On a GPU only what is not there is stood in for."""
    if engine.device != "cpu":
        if not _is_there("cutlass"):
            native_imports.stand_in(_IN_CUTE_DSL)
        return
    _stand_in()
    _no_questions()
    torch.cuda.get_device_capability = lambda *_, **__: _HOPPER
    torch.cuda.get_device_properties = lambda *_, **__: Posing(multi_processor_count=_PROCESSORS)
    torch.cpu.Stream.synchronize = lambda self: None  # which it lacks
    torch.cuda.current_stream = lambda device=None: torch.cpu.current_stream()
    _tensors_on_gpu()
    for module, kind in _CAPTURE_IN:
        owner: Any = getattr(importlib.import_module(module), kind, None)
        for name in _CAPTURING if owner else ():
            if name in vars(owner):
                setattr(owner, name, _captured_as_on_gpu(vars(owner)[name]))


def _stand_in() -> None:
    """For native code on the way of a round."""
    stand_in_for_trees()
    if importlib.util.find_spec("sgl_kernel") is None:
        native_imports.stand_in("sgl_kernel")
    native_imports.stand_in(*native_imports.FLASH_MLA)
    if _is_there(_HELD_WEAKLY):
        native_imports.stand_in(_HELD_WEAKLY)
        vars(importlib.import_module(_HELD_WEAKLY))["weak_ref_tensors"] = lambda tensors: tensors
    if not _is_there(_RENORM):
        native_imports.stand_in("flashinfer", _RENORM)
    vars(importlib.import_module(_RENORM)).update(
        top_k_renorm_probs=sampling.top_k_renorm_prob, top_p_renorm_probs=sampling.top_p_renorm_prob
    )
    if _is_there(_BY_SAMPLING):
        sampled = vars(importlib.import_module(_BY_SAMPLING))
        sampled["tree_speculative_sampling_target_only"] = sampling.tree_speculative_sampling_target_only
    native_imports.stand_in(_TREES)
    kernels: list[ModuleType] = [importlib.import_module(name) for name in ("sgl_kernel", _TREES)]
    if _is_there("sglang.kernels.ops.speculative.tree"):
        kernels.append(importlib.import_module("sglang.kernels.ops.speculative.tree"))
    for module in kernels:
        vars(module)["verify_tree_greedy"] = verify.verify_tree_greedy
        vars(module)["build_tree_kernel_efficient"] = tree.build_tree_kernel_efficient
        vars(module)["reconstruct_indices_from_tree_mask"] = tree.reconstruct_indices_from_tree_mask


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _no_questions() -> None:
    """Have all modules that are there by now answer as on a GPU."""
    launched_as_on_gpus()
    for module in filter(None, map(sys.modules.get, _SAMPLE)):
        vars(module).update({name: getattr(sampling, name) for name in _SAMPLING})
    for name, module in list(sys.modules.items()):
        names = vars(module)
        if name.startswith(_ASK):
            if names.get("_is_cpu"):
                names["_is_cpu"] = False
            if names.get("_is_cuda") is False and name != _COMPILES:
                names["_is_cuda"] = True
        if name.startswith("sglang.") and "get_available_gpu_memory" in names:
            names["get_available_gpu_memory"] = lambda *_, **__: _GIBIBYTES
        if name.endswith(_TUNED_BY_NAME):
            names["get_device_name"] = lambda *_, **__: _NAME
        for copies in _COPIES_TO_HOST if name.startswith("sglang.") else ():
            if copies in names:
                names[copies] = copied_to_host


def _tensors_on_gpu() -> None:
    """Have tensors say that they are on a GPU where the worker asks, whose other code is for CPUs alone."""
    real: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_cuda.__get__

    def is_cuda(self: torch.Tensor) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith(_ON_GPU) or real(self)

    torch.Tensor.is_cuda = property(is_cuda)


def _captured_as_on_gpu(captures: Callable[..., Any]) -> Callable[..., Any]:
    """From here on the worker's or runner's device is "cuda" for Python."""

    def captured(self: Any, *args: Any, **named: Any) -> Any:
        _no_questions()
        for owner in (self, *(getattr(self, name, None) for name in ("target_worker", "draft_runner", "model_runner"))):
            if getattr(owner, "device", None) == "cpu" and not isinstance(owner.device, property):
                _say_cuda(owner)
        return captures(self, *args, **named)

    return captured


def _say_cuda(owner: Any) -> None:
    try:
        owner.device = Device()
    except AttributeError:  # a property, which asks somebody whose device is told by itself
        return


@contextmanager
def overlapping(overlap: bool) -> Iterator[None]:
    """While entered, arguments of a server for a CPU keep the overlap schedule, which sglang turns off there since
    0.5.16."""
    place, name = "sglang.srt.arg_groups.speculative_hook", "_disable_overlap_schedule_for_cpu"
    hook: Any = importlib.import_module(place) if overlap and _is_there(place) else None
    if not hasattr(hook, name):
        yield
        return
    kept = getattr(hook, name)
    setattr(hook, name, lambda server_args: None)
    try:
        yield
    finally:
        setattr(hook, name, kept)
