"""Cases on a captured runner: every step by graph and by eager, from the state right after capture."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup, accepted_max, seq_len_max
from repro.cases.case import Step as Asked
from repro.cases.codec import digest
from repro.traces.device_errors import fault_in
from repro.traces.paths import Recorded
from repro.traces.trace import NOTHING, STALE, Array
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.recording.observer import HarnessError, Refused, RunCase, Unsupported, Watch
from runners.recording.packed import PackedLayout
from runners.releases.live import Adapter
from runners.releases.options.sliding import reserved
from runners.sessions import serving
from runners.sessions.capture import capture_of
from runners.sessions.captured import Captured
from runners.sessions.errors import SglangError, raise_published, unreadable
from runners.sessions.inputs import Inputs
from runners.sessions.observe.catalogue import OBSERVERS
from runners.sessions.step import Step
from runners.sessions.third_opinion import is_asked

_OTHER_DATA = 7919  # any constant
BARE = os.environ.get("EAGLEEYE_RECORD") == "bare"


def open_session(adapter: Adapter, setup: Setup, watch: Watch) -> RunCase:
    """Build workers and capture graphs."""
    engine.memory_seen()  # while workers are built, nothing is given that is captured
    captured = Captured(adapter, setup, capture_of(adapter, setup, watch))
    observers = [seeing(captured) for seeing in OBSERVERS]
    serving.holds(captured.every_tensor)
    pages = [*(tensor[: setup.page_size] for tensor in captured.every_kv), *(row[:1] for row in captured.states.rows)]
    engine.pad_into([*pages, *reserved(captured.live.target.model_runner.token_to_kv_pool), captured.req_to_token[0]])
    if not BACKEND_FACTS[setup.backend].on_cpu:
        engine.leave_on_host(buffer for name, buffer in captured.buffers.items() if name.endswith("_cpu"))
    if BARE:
        return partial(bare_loop, captured)

    def run(case: Case, watch: Watch) -> None:
        watch.fact(STALE, NOTHING)  # facts are a session's, and this one a case's
        if captured.history and captured.history.other is None:
            learn_history(captured, watch)
        watch.see(-1, Recorded.INPUT, "req_to_token", captured.table)
        watch.see(-1, Recorded.INPUT, "refilled", np.asarray(1))
        staging = StagingBuffer(watch, -1)
        for observer in observers:
            observer.once(staging)
        staging.hold()
        name_of_case = digest(case)
        for number, step in enumerate(case.steps):
            try:
                is_referred = is_asked(watch, name_of_case, number)
                # Of the last step, so that a case stays the same case when those before it are taken away.
                last, unseen = number == len(case.steps) - 1 and bool(step.requests), _is_unseen(case, number)
                made = partial(Step, captured, observers, number, step, watch)
                _run_step(partial(made, referred=is_referred, twinned=last, unseen=unseen))
            except SglangError as raised:
                raise_published(raised, setup)
        # Here and not before the next case, which is not to be blamed for what comes out meanwhile.
        captured.reset()

    return run


def _is_unseen(case: Case, number: int) -> bool:
    """True of eager's pass before the last step, in three cases of four, by what is drawn for it: graphs follow graphs
    there, and elsewhere find what eager left."""
    return number == len(case.steps) - 2 and sum(request.data for request in case.steps[number].requests) % 4 > 0


def _run_step(made: Callable[[], Step]) -> None:
    try:
        made().run()
    except (SglangError, Unsupported, HarnessError, torch.AcceleratorError):  # the last wherever it surfaces
        raise
    except Exception as error:
        raise unreadable(error, "what the step left could not be read") from error


def learn_history(captured: Captured, watch: Watch) -> None:
    """Another history than any case's: the largest bucket, full of requests of other slots and lengths. None is known
    where sglang fails at it, which is for a case to find. No request is so long that a buffer sized without branches
    overflows: what a kernel would then destroy, no reset brings back, and some loop over it without end."""
    setup, history = captured.setup, captured.history
    assert history is not None
    longest = max(1, seq_len_max(setup) // (2 * setup.topk))
    requests = [
        Request(slot=setup.slots - n, seq_len=max(1, longest - n), data=_OTHER_DATA + n, accepted=accepted_max(setup))
        for n in range(setup.max_bs)
    ]
    inputs = Inputs(captured, -1, Asked(requests=tuple(requests)), Silent())
    inputs.fill()
    try:
        with captured.timed("graph", Silent()):
            captured.adapter.graph(captured.runner, inputs.batch_for_graph())
    except (SglangError, Refused) as raised:
        if fault_in(raised):
            raise
        captured.history = None
        watch.fact("history", f"no other is known: {getattr(raised, 'error', raised)}")
    else:
        history.learn()
    engine.memory_seen()
    captured.reset()


def bare_loop(captured: Captured, case: Case, watch: Watch) -> None:
    """Measure a case's cost without the harness: its batches are made ahead, then every one goes through the graph and
    through eager, as far as a case's step would have it there, and only at the end is the device waited for. Nothing is
    recorded but the time, as stage `bare`."""
    adapter = captured.adapter
    batches = []
    for number, step in enumerate(case.steps):
        prepared = Step(captured, (), number, step, Silent())
        inputs = prepared.inputs
        inputs.fill()
        by_graph = inputs.batch_for_graph() if prepared.is_replayed() else None
        batches.append((by_graph, inputs.batch(inputs.rows.copied()) if step.requests else None))
    engine.synchronize()
    watch.at(0, "bare")
    start = time.perf_counter()
    for graph_batch, eager_batch in batches:
        if graph_batch is not None:
            adapter.graph(captured.runner, graph_batch)
        if eager_batch is not None:
            adapter.eager(captured.live, eager_batch)
    engine.synchronize()
    watch.spent("bare", time.perf_counter() - start)


class Silent(Watch):
    """A watch that keeps nothing."""

    def at(self, step: int, path: str) -> None:
        pass

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        pass

    def see_all(self, step: int, what: PackedLayout, data: bytes) -> None:
        pass

    def spent(self, stage: str, seconds: float) -> None:
        pass

    def fact(self, name: str, text: str) -> None:
        pass
