"""Workers, built in the order of the scheduler, over what a generation of releases does its own way."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.workers.arguments import construct

# Modules that ask `_is_cpu` and then call sgl_kernel's native code for CPUs, where a GPU launches a Triton kernel;
# there are such since 0.5.16.
_ASK = ("sglang.srt.speculative.", "sglang.kernels.ops.speculative.", "sglang.kernels.ops.kvcache.")
# Modules that cut attention's work into programs by what a GPU holds, and what they know of an H100 or H200.
_BLOCKS = {"_is_cuda": True, "CUDA_CAPABILITY": (9, 0)}
_ON_HOPPER: Mapping[str, Mapping[str, Any]] = {
    "sglang.srt.layers.attention.triton_backend": {"get_device_core_count": lambda *_: 132},
    "sglang.srt.layers.attention.triton_ops.extend_attention": _BLOCKS,
    "sglang.kernels.ops.attention.extend_attention": _BLOCKS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The arguments and construction of the workers of some releases."""

    # ServerArgs of these keyword arguments, which everything in the process may read from then on.
    published: Callable[[Mapping[str, Any]], Any]
    # The rank arguments of a worker.
    ranks: Callable[[], Mapping[str, Any]]
    # Have graphs on from here on, with the setup's buckets.
    graphs_on: Callable[[Any, Setup], None]
    # Whether pools, attention backends and graphs are made after the workers, each in a phase of its own.
    phased: bool
    # Rows of the request pool that belong to no request: 1 where row 0 is an ordinary one, so that 1..slots are left.
    spare_rows: int = 0
    # Makes the one buffer in which the graphs' logits lie, which sglang makes only where graphs are on from the start.
    shared_output: Callable[[Any], Any] | None = None


def as_on_gpus(*more: str) -> None:
    """Have the Triton kernels launched that a GPU launches, also without a GPU. more: further modules."""
    for name, module in list(sys.modules.items()):
        if (name.startswith(_ASK) or name in more) and getattr(module, "_is_cpu", False):
            vars(module)["_is_cpu"] = False


def as_on_hopper() -> None:
    """Have Triton's attention cut into programs as on an H100."""
    for name, known in _ON_HOPPER.items():
        with contextlib.suppress(ModuleNotFoundError):
            vars(importlib.import_module(name)).update(known)


def target_alone(generation: Generation, setup: Setup, device: str, arguments: Mapping[str, Any]) -> Live:
    """A target that decodes token by token."""
    args = _told(generation, setup, device, arguments)
    target = construct(TpModelWorker, args, **generation.ranks())
    if generation.phased:
        target.alloc_memory_pool()
        target.init_attention_backends()
        target.init_cuda_graphs()  # graphs are disabled: this only makes the eager runner
    generation.graphs_on(args, setup)
    init_attention_backend(target.model_runner)  # once more, now that it may know that graphs are on
    return _sharing(generation, Live(setup=setup, device=device, args=args, target=target, draft=None), [])


def with_draft(
    generation: Generation,
    setup: Setup,
    device: str,
    arguments: Mapping[str, Any],
    kind: Any,
    model_runners: Callable[[Live], list[Any]],
    *,
    target_pool_first: bool,
) -> Live:
    """Target and draft; graphs are on at the end. kind: the draft worker's. model_runners: those of the draft.
    target_pool_first: whether the draft worker wants the target's pool to be there when it is made."""
    args = _told(generation, setup, device, arguments)
    target = construct(TpModelWorker, args, **generation.ranks())
    if generation.phased and target_pool_first:
        target.alloc_memory_pool()
    draft = construct(kind, args, **generation.ranks(), target_worker=target)
    if generation.phased:
        if not target_pool_first:
            target.alloc_memory_pool()
        _in_phases(target, draft)
    generation.graphs_on(args, setup)
    live = Live(setup=setup, device=device, args=args, target=target, draft=draft)
    return _sharing(generation, live, model_runners(live))


def _told(generation: Generation, setup: Setup, device: str, arguments: Mapping[str, Any]) -> Any:
    args = generation.published(arguments)
    if device == "cpu" and not BACKEND_FACTS[setup.backend].on_cpu:
        as_on_gpus()
        if setup.backend == "triton":
            as_on_hopper()
    return args


def _in_phases(target: Any, draft: Any) -> None:
    requests, tokens = target.get_memory_pool()
    draft.alloc_memory_pool(
        memory_pool_config=target.model_runner.memory_pool_config,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=tokens,
    )
    for worker in (target, draft):
        worker.init_attention_backends()
    for worker in (target, draft):
        worker.init_cuda_graphs()  # graphs are disabled: this only makes the eager runners


def init_attention_backend(model_runner: Any) -> None:
    """In the plural since 0.5.16; 0.5.14 and 0.5.15 have both, of which this one is what a target needs."""
    init = getattr(model_runner, "init_attention_backend", None) or model_runner.init_attention_backends
    init()


def _sharing(generation: Generation, live: Live, of_draft: list[Any]) -> Live:
    if generation.shared_output:
        for runner in (live.target.model_runner, *of_draft):
            runner.graph_shared_output = generation.shared_output(runner)
    return live
