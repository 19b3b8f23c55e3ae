"""Construction in phases, since 0.5.16: the order of the scheduler, over what a generation of releases does its own
way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput

from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers import v0_5_10, v0_5_14
from runners.releases.workers.v0_5_10 import construct

# Modules that ask `_is_cpu` and then call sgl_kernel's native code for CPUs, where a GPU launches a Triton kernel.
_ASK = ("sglang.srt.speculative.", "sglang.kernels.ops.speculative.", "sglang.kernels.ops.kvcache.")
# The backends of which a CPU really takes its own way.
_OF_THE_CPU = ("intel_amx",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How some releases are told their arguments and constructed.

    published: ServerArgs of these keyword arguments, which everything in the process may read from then on. ranks:
    the rank arguments of a worker. graphs_on: have graphs on from here on, with the setup's buckets.
    """

    name: str
    published: Callable[[Mapping[str, Any]], Any]
    ranks: Callable[[], Mapping[str, Any]]
    graphs_on: Callable[[Any, Setup], None]


def as_on_gpus(*more: str) -> None:
    """Have the Triton kernels launched that a GPU launches, also where there is none. more: further modules."""
    for name, module in list(sys.modules.items()):
        if (name.startswith(_ASK) or name in more) and getattr(module, "_is_cpu", False):
            vars(module)["_is_cpu"] = False


def target_alone(generation: Generation, setup: Setup, device: str, models: Folders) -> Live:
    """A target that decodes token by token."""
    args = generation.published(v0_5_10.without_speculation(v0_5_14.server_args(setup, device, models)))
    _choose_way(setup, device)
    target = construct(TpModelWorker, args, **generation.ranks())
    target.alloc_memory_pool()
    target.init_attention_backends()
    target.init_cuda_graphs()  # graphs are disabled: this only makes the eager runner
    generation.graphs_on(args, setup)
    target.model_runner.init_attention_backends()  # once more, now that it may know that graphs are on
    return _sharing(Live(setup=setup, device=device, args=args, target=target, draft=None), [target.model_runner])


def in_phases(
    generation: Generation,
    setup: Setup,
    device: str,
    arguments: Mapping[str, Any],
    kind: Any,
    model_runners: Callable[[Live], list[Any]],
) -> Live:
    """Target and draft, as the scheduler goes about it; graphs are on at the end. kind: the draft worker's.
    model_runners: those of the draft."""
    args = generation.published(arguments)
    _choose_way(setup, device)
    target = construct(TpModelWorker, args, **generation.ranks())
    draft = construct(kind, args, **generation.ranks(), target_worker=target)
    target.alloc_memory_pool()
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
    generation.graphs_on(args, setup)
    live = Live(setup=setup, device=device, args=args, target=target, draft=draft)
    return _sharing(live, [target.model_runner, *model_runners(live)])


def _choose_way(setup: Setup, device: str) -> None:
    if device == "cpu" and setup.backend not in _OF_THE_CPU:
        as_on_gpus()


def _sharing(live: Live, model_runners: list[Any]) -> Live:
    """The graphs' logits lie in one buffer, which is made only where graphs are on from the start."""
    for runner in model_runners:
        runner.graph_shared_output = GraphSharedOutput.create_for_model_runner(runner)
    return live
