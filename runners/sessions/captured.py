"""A built and captured runner with everything around it that a step needs: buffers, guard bands, KV cache, hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch

from repro.cases.case import Setup, Step
from repro.cases.layout import Ints, req_to_token
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.guards import Guards
from runners.engines.staging import flats
from runners.recording.observer import Watch
from runners.releases.live import Adapter
from runners.releases.options import adaptive, dp_ranks
from runners.releases.options.sliding import any_cache
from runners.sessions import memory
from runners.sessions.capture import Capture
from runners.sessions.errors import sglang_errors
from runners.sessions.history import History
from runners.sessions.planner import Planner, attention_backends
from runners.sessions.state import State
from runners.sessions.states import States
from runners.sessions.third_opinion import ThirdOpinion
from runners.sessions.unmade import unmade


class Captured:
    """A captured runner, and the state it had right after capture, to which every case returns."""

    def __init__(self, adapter: Adapter, setup: Setup, capture: Capture) -> None:
        self.adapter, self.setup, self.live, self.runner = adapter, setup, capture.live, capture.runner
        self.device = torch.device(self.live.device)
        self.layout, self.table = 0, req_to_token(setup)
        self.slots, self._first_table = np.unique(self.table[1:]), self.table
        self.neutral = dict(adapter.neutral(self.live))
        self._hold_memory()
        self._hold_workers(capture)
        self.launched: object = None  # the graph of the launch under way, where graphs say so themselves
        self._hold_state(capture.guards)

    def _hold_memory(self) -> None:
        """KV caches, and the input buffers that the family names."""
        family = self.adapter.family
        self.model_runner = family.model_runner(self.live)
        self.dtype: torch.dtype = self.model_runner.dtype
        self.kv = family.kv(self.model_runner)
        self.other_kv = [any_cache(other) for other in family.others(self.live)]
        self.states = States(self.model_runner, self.setup)
        caches = [self.kv, *self.other_kv]
        widest = max(tensor[0].numel() for kv in (*caches, self.states.rows) for tensor in kv)
        values = memory.filled_from(widest, self.device, self.dtype)
        self.fillings = [memory.Filling(kv, values) for kv in caches]
        self.states.filled_from(values)
        self.snapshots = memory.Snapshots(self.kv, beside=self.states.snapshots)
        buffers = family.input_buffers(self.runner)
        tensors = {name: getattr(buffers, name, None) for name in family.buffers}
        self.buffers = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self.known = flats(self.buffers)

    def _hold_workers(self, capture: Capture) -> None:
        """Everything known of workers, their attention backends and the runner."""
        setup, live = self.setup, self.live
        self.switches = adaptive.switches(self.runner)
        self.extents, self.buckets = capture.extents, capture.buckets
        self.backends, self.pools = capture.backends, capture.pools
        self.planner = Planner([live.target, live.draft])
        self.third_opinion = ThirdOpinion(partial(self.adapter.family.reference, live), setup, self.dtype)
        self.owners = {"runner": self.runner, "target": live.target, "draft": live.draft}
        self.unmade = sorted({*unmade(self.owners), *capture.absent})

    def _hold_state(self, guards: Guards) -> None:
        """The state that outlives a call, as it is right after capture."""
        static = self._static_tensors()
        self.state = State(self.owners, [*self.every_kv, *self.states.static().values(), self.req_to_token])
        self.history: History | None = None
        self.further: dict[str, torch.Tensor] = {}  # input buffers that the family does not name
        if engine.device == "cpu" and not self.adapter.family.launched:
            backends = attention_backends([self.live.target, self.live.draft])  # capturing may have made some
            owners = {"": self.runner, **{f"backend.{number}": backend for number, backend in enumerate(backends)}}
            self.history = History(owners, self.state, self.buffers, self.kv, self.setup.max_bs)
            self.further = self.history.input_buffers()
            known = {tensor.data_ptr() for tensor in static.values()}
            static |= {n: tensor for n, tensor in self.history.tensors.items() if tensor.data_ptr() not in known}
        self.bands = guards.bands(static)
        self._static = list(static.values())
        self._start = memory.copied(self._static)
        self._start_state = self.state.take()

    @property
    def req_to_token(self) -> torch.Tensor:
        rows: torch.Tensor = self.model_runner.req_to_token_pool.req_to_token
        return rows

    def slots_but(self, taken: Ints) -> Ints:
        """The KV slots that requests may own, in order, without these."""
        free = np.zeros(int(self.slots[-1]) + 1, dtype=np.bool_)
        free[self.slots] = True
        free[taken[taken < free.size]] = False
        return np.flatnonzero(free)

    @property
    def every_kv(self) -> list[torch.Tensor]:
        """The tensors of all KV caches."""
        return [tensor for kv in (self.kv, *self.other_kv) for tensor in kv]

    @property
    def every_tensor(self) -> list[torch.Tensor]:
        """The tensors that must be freed with this object: weights, and all that outlives a call."""
        return [*self.model_runner.model.parameters(), *self._static, *self.every_kv]

    def _static_tensors(self) -> dict[str, torch.Tensor]:
        """Everything that outlives a call: runner buffers, metadata buffers, the KV cache and its index."""
        caches = {f"kv_cache.{number}": tensor for number, tensor in enumerate(self.kv)}
        for other, kv in enumerate(self.other_kv):
            caches |= {f"kv_cache_of_{other}.{number}": tensor for number, tensor in enumerate(kv)}
        static = self.adapter.family.static(self.live, self.runner)
        return {**self.buffers, **static, **caches, **self.states.static(), "req_to_token": self.req_to_token}

    def reset(self) -> None:
        """Return to the state right after capture. Guard bands, too: what the last eager pass of a case wrote outside
        its memory is not the next one's doing."""
        self._start_state.put_back()
        memory.restore(self._static, self._start)
        for bands in self.bands:
            bands.mend()
        self.layout, self.table = 0, self._first_table
        self.states.lay_out(0)

    def asks(self, hidden: str, step: int, watch: Watch) -> str:
        """The hidden states that a batch asks for. Since 0.5.17 a request that asks for more than graphs were captured
        with comes no further than the server's front, and the runner is not made for such a batch."""
        fixed = hasattr(self.runner, "_validate_capture_hidden_mode") and not self.setup.returns_hidden
        if not fixed or not hidden:
            return hidden
        watch.see(step, Recorded.ASKED, "hidden", np.asarray(0))
        return ""

    def tell_ranks(self, batch: object, step: Step, *, replayed: bool = True) -> None:
        """Tell a batch what the other rank has, where there is one. replayed: a graph is to be replayed for it."""
        each = RUNNER_FACTS[self.setup.runner].rank_tokens
        if self.setup.dp_attention and each is not None:
            tell = dp_ranks.tell if replayed else dp_ranks.tell_unreplayed
            tell(batch, (len(step.requests), step.elsewhere), each(self.setup))

    def unreplayed_rank(self) -> AbstractContextManager[None]:
        """While entered, eager passes are this rank's in a group of two, if there is another."""
        return dp_ranks.unreplayed() if self.setup.dp_attention else nullcontext()

    def gathered(self) -> dict[str, torch.Tensor]:
        """The runner's buffers that say how many tokens each rank has, where there are several."""
        return dp_ranks.gathered(self.runner) if self.setup.dp_attention else {}

    def lay_out(self, layout: int) -> bool:
        """Have request slots own KV slots by this layout; whether they did not before."""
        if layout == self.layout:
            return False
        self.layout, self.table = layout, req_to_token(self.setup, layout)
        memory.fill_table(self.req_to_token, self.table)
        self.states.lay_out(layout)
        return True

    @contextmanager
    def embeddings_moved(self, factor: float) -> Iterator[None]:
        """Move what tokens stand for: a runner that is given nothing but tokens is nudged by it."""
        parameters = self.model_runner.model.named_parameters()
        embeddings = [parameter.data for name, parameter in parameters if "embed" in name]
        unmoved = memory.copied(embeddings)
        for embedding in embeddings:
            embedding.mul_(factor)
        try:
            yield
        finally:
            memory.restore(embeddings, unmoved)

    @contextmanager
    def timed(self, stage: str, watch: Watch) -> Iterator[None]:
        """Run sglang's code: what it raises is a finding. An asynchronous error may surface later, in wait_for() at
        the latest."""
        start = time.perf_counter()
        with sglang_errors(wait=False):
            yield
        watch.spent(stage, time.perf_counter() - start)

    def wait_for(self, stage: str, watch: Watch) -> None:
        """Wait for the device. Added to the stage that keeps it busy."""
        start = time.perf_counter()
        engine.synchronize()
        watch.spent(stage, time.perf_counter() - start)

    def launching(self, launched: Callable[[], None]) -> AbstractContextManager[None]:
        """While entered, `launched` is called just before every launch of a graph."""
        hook = self.adapter.family.launching
        return hook(self.runner, launched) if hook else self._graphs_say(launched)

    @contextmanager
    def _graphs_say(self, launched: Callable[[], None]) -> Iterator[None]:
        def said(graph: object) -> None:
            self.launched = graph
            launched()

        engine.Graph.before_replay = said
        try:
            yield
        finally:
            engine.Graph.before_replay = None
