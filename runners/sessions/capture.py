"""Builds sglang's workers for a setup and has the runner capture its graphs, in guarded memory of known contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.families import is_recurrent
from repro.cases.layout import Ints, req_to_token
from repro.cases.runner_facts import RUNNER_FACTS
from runners.engines.active import engine
from runners.engines.guards import Guards
from runners.recording.observer import Watch
from runners.releases import attention_calls, model
from runners.releases.live import Adapter, Live
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
    family, table = adapter.family, req_to_token(setup)
    guards = Guards(engine.capturing, apart="cuda")
    windowed = model.windowed(setup.window, RUNNER_FACTS[setup.runner].windowed)
    with guards, windowed, model.capped(setup.logit_cap), model.folders(*family.configs(setup)) as folders:
        live: Live = adapter.build(setup, engine.device, folders)
        first = family.model_runner(live)
        model.fill_weights(first.model)
        checkpoint.complete(live, first.model)
        memory.fill_table(first.req_to_token_pool.req_to_token, table)
        memory.fill_cache(family.kv(first), table)
        for other in family.others(live):
            _fill(live, other, table)
        workers = [worker for worker in (live.target, live.draft) if worker is not None]
        lacking = [name for worker in workers for name in absent(worker)]
        # What is captured, and run once before, stores all its rows where padding does.
        caches = [*family.kv(first), *(tensor for other in family.others(live) for tensor in any_cache(other))]
        if is_recurrent(setup):
            recurrent.ready(live, first)
        states = [row for layers in recurrent.of_kinds(first).values() for row in layers]
        engine.pad_into([*(tensor[: setup.page_size] for tensor in caches), *(rows[:1] for rows in states)])
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


def _fill(live: Live, other: Any, table: Ints) -> None:
    model.fill_weights(other.model)
    checkpoint.complete(live, other.model)
    memory.fill_cache(any_cache(other), table)
