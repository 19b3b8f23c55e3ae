"""Builds sglang's workers for a setup and has the runner capture its graphs, in guarded memory of known contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.families import is_recurrent
from repro.cases.layout import req_to_token
from repro.cases.runner_facts import RUNNER_FACTS
from runners.engines.active import engine
from runners.engines.guards import Guards
from runners.recording.observer import Watch
from runners.releases import attention_calls, model
from runners.releases.live import Adapter, Family, Live
from runners.releases.options import dp_ranks, recurrent
from runners.releases.options.sliding import any_cache
from runners.releases.workers import buckets, checkpoint
from runners.sessions import attributes, memory
from runners.sessions.extents import Extents
from runners.sessions.planner import attention_backends
from runners.sessions.unmade import absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The workers and the runner, and what was noted on the way."""

    live: Live
    runner: Any
    guards: Guards  # around what was allocated meanwhile
    extents: Extents  # of captured batches
    # By size of the request pool and batches at once, the sizes that a server captures.
    buckets: Mapping[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    backends: Sequence[Any] = ()  # the attention backends that there were before any graph
    pools: Sequence[Any] = ()  # the KV pool that each of them read
    absent: Sequence[str] = ()  # attributes that workers lacked once they were constructed


def capture_of(adapter: Adapter, setup: Setup, watch: Watch) -> Capture:
    """Raises whatever sglang raises."""
    family = adapter.family
    guards = Guards(engine.capturing, apart="cuda")
    windowed = model.windowed(setup.window, RUNNER_FACTS[setup.runner].windowed)
    with guards, windowed, model.capped(setup.logit_cap), model.folders(*family.configs(setup)) as folders:
        live: Live = adapter.build(setup, engine.device, folders)
        workers = [worker for worker in (live.target, live.draft) if worker is not None]
        lacking = [name for worker in workers for name in absent(worker)]
        engine.pad_into(_filled(family, live))
        watch.at(-1, "capture")
        extents, backends = Extents(), attention_backends([live.target, live.draft])
        pools = attributes.pools(backends)
        models = [family.model_runner(live), live.target.model_runner]
        ranks = dp_ranks.one_of_two(models) if setup.dp_attention else nullcontext()
        with attention_calls.heard(extents.note), ranks:
            runner = adapter.capture(live)
    engine.Graph.runner_is_captured = True
    sizes: Mapping[tuple[int, int], Sequence[int]] = {}
    if BACKEND_FACTS[setup.backend].on_cpu:  # no graph of a CPU tells parallel layers anything
        extents.tokens.clear()
    else:
        sizes = dict(buckets.asked(live.args, setup.capture_bs))
    return Capture(
        live=live,
        runner=runner,
        guards=guards,
        extents=extents,
        buckets=sizes,
        backends=backends,
        pools=pools,
        absent=lacking,
    )


def _filled(family: Family, live: Live) -> list[torch.Tensor]:
    """Fill weights, request table and KV caches. The rows at which padding may write: what is captured, and run once
    before, stores all its rows there."""
    setup, first = live.setup, family.model_runner(live)
    table = req_to_token(setup)
    memory.fill_table(first.req_to_token_pool.req_to_token, table)
    caches = []
    for runner, cache in ((first, family.kv), *((other, any_cache) for other in family.others(live))):
        model.fill_weights(runner.model)
        checkpoint.complete(setup, live.device, runner.model)
        memory.fill_cache(cache(runner), table)
        caches += cache(runner)
    if is_recurrent(setup):
        recurrent.ready(live, first)
    states = [row for layers in recurrent.of_kinds(first).values() for row in layers]
    return [*(tensor[: setup.page_size] for tensor in caches), *(rows[:1] for rows in states)]
