"""The answers by which a worker that drafts whole blocks takes the ways that it takes on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from repro.cases.runner_facts import MARKOV
from runners.engines.active import engine
from runners.engines.standins import libdevice, sampling
from runners.releases.adapters.round.as_on_gpus import Device

_WORKER, _UTILS = "sglang.srt.speculative.dflash_worker_v2", "sglang.srt.speculative.dflash_utils"
_MARKOV_WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2"
# The module of its kernels for accepting drafts, since 0.5.17 and before; and its name for flashinfer's softmax, where
# sglang has a Triton kernel that serves without flashinfer.
_ACCEPT = (
    "sglang.kernels.ops.speculative.dspark.dspark_accept",
    "sglang.srt.speculative.dspark_components.kernels.dspark_accept",
)
_SOFTMAX = "_flashinfer_softmax"
# Its kernel that draws drafts, since 0.5.22.
_DRAWS = "sglang.kernels.ops.speculative.dspark.markov_sample"
_HOOK = "sglang.srt.arg_groups.speculative_hook"
_FORWARD = "sglang.srt.model_executor.model_runner"
_POOL = "sglang.srt.mem_cache.memory_pool"
_SAMPLING = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")
# A worker's last blocks: their first token, and those that were drafted.
DRAFTED = "_draft_block_tokens_buf"
# Checks the arguments of a server, by algorithm, and what hands it their view.
HANDLES, _VIEW = {"DFLASH": "_handle_dflash", MARKOV: "_handle_dspark"}, "resolving_view"
# What says whether verify may sample, and a method that writes through a Triton kernel on a GPU.
_SAMPLES, _WRITES = "_DFLASH_SAMPLING_VERIFY_AVAILABLE", "set_kv_buffer_prefix_valid"
# Measures how much memory of a GPU a sampling verify takes, before there are requests.
_REHEARSES = "prewarm_sampling"
# Makes what writes keys and values of all draft layers at once, where that is kept, and its copies of weights.
_MAKES, _WRITER, _COPIES = "_init_fused_kv_helper", "_fused_kv_helper", ("flat_kv_weight_t", "k_norm_weights")
# The same of DSPARK's draft model: absent, or None, until they are asked for.
_STACKED, _BUNDLE = "_stacked_ctx_kv_cache", "_fused_kv_write_cache"


class _OnGpu:
    """A view of a server's arguments, in which the device is a GPU."""

    device = "cuda"

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def prepare(algorithm: str) -> None:
    """Once a process, before a scheduler is constructed. On a GPU nothing is stood in for."""
    if engine.device != "cpu":
        return
    if algorithm == MARKOV:
        _prepare_markov()
    else:
        _prepare_dflash()
    vars(importlib.import_module(_UTILS)).update({name: getattr(sampling, name) for name in _SAMPLING})
    vars(importlib.import_module(_UTILS))[_SAMPLES] = True
    pool = importlib.import_module(_POOL)
    kind: Any = pool.MHATokenToKVPool
    writes = getattr(kind, _WRITES)

    def write(self: Any, *args: Any, **kwargs: Any) -> None:
        vars(pool)["_is_cuda"] = True  # nowhere else, as this module compiles a kernel of its own where it is
        try:
            writes(self, *args, **kwargs)
        finally:
            vars(pool)["_is_cuda"] = False

    setattr(kind, _WRITES, write)


def _prepare_dflash() -> None:
    worker: Any = importlib.import_module(_WORKER)
    worker.is_cuda = lambda: True
    if hasattr(worker.DFlashWorkerV2, _REHEARSES):
        setattr(worker.DFlashWorkerV2, _REHEARSES, lambda self: self.model_runner.prewarm_sampling())
    setattr(worker.DFlashWorkerV2, _MAKES, _on_gpu(getattr(worker.DFlashWorkerV2, _MAKES)))


def _prepare_markov() -> None:
    worker: Any = importlib.import_module(_MARKOV_WORKER)
    worker.is_cuda = worker.is_cuda_alike = lambda: True
    newer = importlib.util.find_spec(_ACCEPT[0].rpartition(".")[0]) is not None
    setattr(importlib.import_module(_ACCEPT[not newer]), _SOFTMAX, None)
    torch.cuda.current_device = lambda: 0  # asked for the memory that is free
    if newer and importlib.util.find_spec(_DRAWS) is not None:
        vars(importlib.import_module(_DRAWS))["libdevice"] = libdevice


def keep_drafted(worker: Any) -> None:
    """Have a worker whose blocks are local to its rounds keep the last ones, as DFLASH's does."""
    executor = worker._verify_executor
    finishes = executor.accept_and_finalize

    def finish(*args: Any, verify_ids_2d: torch.Tensor, **named: Any) -> Any:
        setattr(worker, DRAFTED, verify_ids_2d)
        return finishes(*args, verify_ids_2d=verify_ids_2d, **named)

    executor.accept_and_finalize = finish


def derive(worker: Any) -> None:
    """Have what a worker has made of its draft's weights follow those of now: DFLASH's in place, DSPARK's by leaving it
    to the draft model to make it again."""
    writer = getattr(worker, "__dict__", {}).get(_WRITER)
    if writer is not None:
        getattr(worker, _MAKES)()
        newer = getattr(worker, _WRITER)
        for name in _COPIES:
            getattr(writer, name).copy_(getattr(newer, name))
        setattr(worker, _WRITER, writer)
    attributes = vars(getattr(worker, "draft_model", None) or worker)
    attributes.pop(_STACKED, None)
    if _BUNDLE in attributes:
        attributes[_BUNDLE] = None


def _on_gpu(makes: Callable[[Any], None]) -> Callable[[Any], None]:
    """Have the helper know that it is on a GPU, before the worker does."""

    def made(self: Any) -> None:
        makes(self)
        if self._fused_kv_helper is not None:
            self._fused_kv_helper.device = Device()

    return made


@contextmanager
def typed() -> Iterator[None]:
    """While entered, what runs without a graph keeps the type of a block's embeddings. sglang makes bfloat16 of them
    there, which no other weights take (model_runner.py, 0.5.23:1772), and in no graph: so it dies where a batch that
    no graph holds is served, and a pass to compare with would, too."""
    makes = torch.Tensor.bfloat16

    def bfloat16(self: torch.Tensor) -> torch.Tensor:
        return self if sys._getframe(1).f_globals.get("__name__") == _FORWARD else makes(self)

    torch.Tensor.bfloat16 = bfloat16
    try:
        yield
    finally:
        torch.Tensor.bfloat16 = makes


@contextmanager
def accepted(handles: str) -> Iterator[None]:
    """While entered, arguments of a server for a CPU may have the algorithm that sglang's function `handles` checks,
    which is for GPUs."""
    hook: Any = importlib.import_module(_HOOK)
    if engine.device != "cpu":
        yield
        return
    kept = getattr(hook, handles)
    setattr(hook, handles, _told_of_a_gpu(kept))
    try:
        yield
    finally:
        setattr(hook, handles, kept)


def _told_of_a_gpu(handle: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same check of a server's arguments, of a server on a GPU."""
    hook: Any = importlib.import_module(_HOOK)

    def handled(args: Any) -> None:
        if view := getattr(hook, _VIEW, None):  # since 0.5.19, where arguments are read-only
            setattr(hook, _VIEW, lambda args: _OnGpu(view(args)))
            try:
                return handle(args)
            finally:
                setattr(hook, _VIEW, view)
        device, args.device = args.device, "cuda"
        try:
            return handle(args)
        finally:
            args.device = device

    return handled
