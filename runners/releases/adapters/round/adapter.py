"""A scheduler for a setup: its arguments, and how they are published."""

from __future__ import annotations

import inspect
import os
from contextlib import nullcontext
from typing import Any

from sglang.srt.server_args import ServerArgs

from repro.cases.case import Setup
from repro.cases.rows.requests import SANITIZE
from repro.cases.rows.serving import PLAN_STREAM, pool_of, prefill_buckets
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS, MARKOV, RUNNER_FACTS
from runners.recording.observer import Unsupported
from runners.releases import model
from runners.releases.adapters.round import as_on_gpus, blocks, ranks, table, weights
from runners.releases.adapters.round.family import Wire
from runners.releases.adapters.round.scheduler import constructed
from runners.releases.options import grammar, lora
from runners.releases.options.algorithms import verifying
from runners.releases.workers import present
from runners.releases.workers.arguments import refuse
from runners.releases.workers.building import as_on_hopper
from runners.targets import pinned

_NO_PREFILL = "disable_prefill_cuda_graph"
published = present.GENERATION.published


def build(setup: Setup, device: str, wire: Wire, published: Any) -> Any:
    """published: of this release, which makes server arguments of keyword arguments and no process groups."""
    refuse(setup)
    as_on_gpus.prepare()
    in_blocks = setup.algorithm in IN_BLOCKS
    from_table = setup.algorithm in FROM_TABLE
    if in_blocks:
        blocks.prepare(setup.algorithm)
    if from_table:
        table.prepare()
    os.environ[PLAN_STREAM] = str(int(setup.plan_stream))
    os.environ[SANITIZE] = str(int(setup.sanitizes))
    if pinned.older_here("torch"):
        # The wheel's Rust core of the radix cache is compiled for the PyTorch that the release pins. Under 2.11 that of
        # 0.5.23 takes int64 slots for floats; sglang's Python core is asked for instead.
        os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
    if device == "cpu":
        os.environ["SGLANG_ENABLE_WAR_BARRIER"] = "1"  # as on a GPU, where releases that have it ask nobody
    if device == "cpu" and setup.backend == "triton":
        as_on_hopper()
    with (
        model.norms_without_kernels(),
        model.windowed(setup.window, RUNNER_FACTS[setup.runner].windowed),
        model.capped(setup.logit_cap),
        model.folders(*verifying(setup)) as folders,
        weights.loading(setup, device),
        as_on_gpus.overlapping(setup.overlap),
        ranks.modelled(setup, wire.others),
        blocks.accepted(blocks.HANDLES[setup.algorithm]) if in_blocks else nullcontext(),
        table.accepted() if from_table else nullcontext(),
    ):
        arguments = present.server_args(setup, device, folders) | {
            "disable_cuda_graph": False,
            "disable_overlap_schedule": not setup.overlap,
            "max_total_tokens": pool_of(setup),
            "disable_radix_cache": not setup.radix,
        }
        if setup.chunk:
            arguments["chunked_prefill_size"] = setup.chunk
        arguments |= ranks.arguments(setup, arguments)
        if _NO_PREFILL in inspect.signature(ServerArgs).parameters:  # on by default on a GPU
            arguments[_NO_PREFILL] = not prefill_buckets(setup)
        elif prefill_buckets(setup):
            raise Unsupported("before 0.5.14 prefill graphs are of runners that are not driven")
        args = published(arguments)
        present.GENERATION.graphs_on(args, setup)
        scheduler = constructed(args, wire, ranks.placed(setup))
    if setup.enable_lora:
        lora.load(scheduler.tp_worker.model_runner, setup)
    grammar.prepare(scheduler, setup)
    if setup.algorithm == MARKOV:
        blocks.keep_drafted(scheduler.draft_worker)
    return scheduler
