"""Rounds: sglang's scheduler serves the requests of a case by graph; texts, ends and what is left are recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repro.cases.case import Case, Setup, Target
from repro.cases.layout import Ints
from repro.cases.payload import integers
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.recording.observer import HarnessError, RunCase, Watch
from runners.releases import catalogue
from runners.releases.adapters.round import scheduler as serving
from runners.releases.adapters.round import weights
from runners.releases.adapters.round.family import EndOfLoop, Wire
from runners.releases.adapters.stood_in import stood_in
from runners.releases.reference.served import Teacher
from runners.sessions.errors import attributed, sglang_errors
from runners.sessions.observe.bucket import captured_for
from runners.sessions.observe.memory import see_memory

# Idle iterations behind the last end: the overlap loop is one late, and an idle scheduler checks itself.
IDLE = 3
# Iterations that a request may take for each of its tokens, and besides: far more than it needs in a full pool.
EACH, BESIDES = 4, 64
NO_TOKEN = -1


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Construct a scheduler, which captures graphs, and give its models their weights."""
    release = catalogue.present_release()
    part = catalogue.parts(release, setup.runner)
    watch.fact("adapter", catalogue.adapter_name(release, setup.runner))
    watch.fact("objects", stood_in(setup.runner))
    wire = Wire()
    watch.at(-1, "capture")
    scheduler = part("build")(setup, engine.device, wire, part("published"))
    if scheduler.enable_overlap != setup.overlap:
        raise HarnessError(f"asked for overlap {setup.overlap}, the scheduler has {scheduler.enable_overlap}")
    engine.Graph.runner_is_captured = True
    weights.fill(*serving.models(scheduler), setup.disagreement / 100)
    pages = (tensor[: setup.page_size] for tensor in serving.caches(scheduler))
    engine.pad_into([*pages, scheduler.req_to_token_pool.req_to_token[0]])
    served = Served(scheduler, wire, setup)

    def run(case: Case, watch: Watch) -> None:
        served.run(case, watch)

    return attributed(run)


class Served:
    """A scheduler and the cases that it serves, one after the other."""

    def __init__(self, scheduler: Any, wire: Wire, setup: Setup) -> None:
        self.scheduler, self.wire, self.setup = scheduler, wire, setup
        model = scheduler.tp_worker.model_runner
        self.teacher = Teacher(model.model, setup.vocab_size, model.dtype, on_gpu=engine.device != "cpu")
        self.at_start = serving.holdings(scheduler)

    def run(self, case: Case, watch: Watch) -> None:
        self._clear()
        prompts = [[prompt(self.setup, r.data, r.seq_len) for r in step.requests] for step in case.steps]
        for number, texts in enumerate(prompts):
            watch.see(number, Recorded.INPUT, "seq_lens", np.array([len(text) for text in texts]))
            watch.see(number, Recorded.INPUT, "prompts", rows(texts))
        clock = Clock(case, prompts, self.wire, watch)
        launches: Counter[tuple[str, int]] = Counter()
        start = time.perf_counter()
        with sglang_errors(), launching(serving.graphs(self.scheduler), launches):
            serving.run(self.scheduler, self.wire, clock)
        watch.spent("graph", time.perf_counter() - start)
        self._record(case, prompts, watch, clock, launches)
        if clock.left():
            self._end_all()
        self._see_holdings(watch)
        tape = StagingBuffer(watch, len(case.steps) - 1)
        see_memory(tape)

    def _clear(self) -> None:
        self.wire.sent.clear()
        engine.memory_seen()
        for tensor in serving.caches(self.scheduler):
            tensor.zero_()

    def _record(
        self, case: Case, prompts: Sequence[Sequence[Ints]], watch: Watch, clock: Clock, launches: Counter[Any]
    ) -> None:
        start = time.perf_counter()
        tokens, ended = serving.outputs(self.wire.sent)
        for number, step in enumerate(case.steps):
            names = [name_of(number, row) for row in range(len(step.requests))]
            texts = [tokens.get(name, []) for name in names]
            watch.see(number, Recorded.SERVED, "tokens", rows(texts))
            watch.see(number, Recorded.SERVED, "ended", np.array([ended.get(name, 0) for name in names]))
            judged = [
                self.teacher.judge(ids, text) if text else None
                for ids, text in zip(prompts[number], texts, strict=True)
            ]
            watch.see(number, Recorded.SERVED, "best", rows([each.best if each else () for each in judged]))
            behind = rows([each.behind if each else () for each in judged], np.float64)
            watch.see(number, Recorded.SERVED, "behind", behind)
            noise = np.array([each.noise if each else 0.0 for each in judged])
            watch.see(number, Recorded.SERVED, "noise", noise)
        counts = [f"{count} of {name} for {size}" for (name, size), count in sorted(launches.items())]
        watch.fact("launches", ", ".join(counts) or "none")
        watch.fact("iterations", str(clock.iteration))
        watch.spent("record", time.perf_counter() - start)

    def _end_all(self) -> None:
        """Abort what would not end, so that the next case begins on an idle scheduler."""
        with sglang_errors():
            serving.run(self.scheduler, self.wire, Aborting())

    def _see_holdings(self, watch: Watch) -> None:
        """Record what belongs to no request at the start, when all have ended, and after a flush."""
        ended = serving.holdings(self.scheduler)
        with sglang_errors():
            self.scheduler.flush_cache()
        flushed = serving.holdings(self.scheduler)
        for name, count in self.at_start.items():
            watch.see(-1, Recorded.HOLDINGS, name, np.array([count, ended[name], flushed[name]]))


def name_of(number: int, row: int) -> str:
    """A request's, by its place in the case."""
    return f"{number}.{row}"


def prompt(setup: Setup, data: int, length: int) -> Ints:
    """Token ids, by the request's data."""
    return integers(data, "prompt", (length,), setup.vocab_size)


def rows(lists: Sequence[Any], dtype: Any = np.int64) -> Any:
    """One row a list, [n, longest], filled up with NO_TOKEN."""
    table = np.full((len(lists), max(map(len, lists), default=0)), NO_TOKEN, dtype=dtype)
    for row, values in enumerate(lists):
        table[row, : len(values)] = values
    return table


@dataclass(slots=True)
class Clock:
    """Called at the beginning of each iteration of the event loop. Mutable: it counts them."""

    case: Case
    prompts: Sequence[Sequence[Ints]]
    wire: Wire
    watch: Watch
    iteration: int = 0
    idle: int = 0
    arrived: int = 0  # steps
    due: int = field(init=False)
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        steps = self.case.steps
        self.due = steps[0].wait
        tokens = sum(1 + request.further for step in steps for request in step.requests)
        count = sum(len(step.requests) for step in steps)
        self.limit = sum(step.wait for step in steps) + EACH * (tokens + count) + BESIDES

    def __call__(self) -> list[Any]:
        self.idle = self.idle + 1 if not self.left() else 0
        if self.idle > IDLE or self.iteration >= self.limit:
            raise EndOfLoop
        arriving: list[Any] = []
        while self.arrived < len(self.case.steps) and self.iteration >= self.due:
            arriving += self._arriving(self.arrived)
            self.arrived += 1
            if self.arrived < len(self.case.steps):
                self.due = self.iteration + self.case.steps[self.arrived].wait
        self.iteration += 1
        return arriving

    def left(self) -> int:
        """The number of requests that have not ended, those that are still to come included."""
        _, ended = serving.outputs(self.wire.sent)
        return sum(len(step.requests) for step in self.case.steps) - len(ended)

    def _arriving(self, number: int) -> list[Any]:
        self.watch.at(number, Recorded.SERVED)
        requests = enumerate(self.case.steps[number].requests)
        return [
            serving.request(name_of(number, row), self.prompts[number][row].tolist(), 1 + request.further)
            for row, request in requests
        ]


@dataclass(slots=True)
class Aborting:
    """The same, to abort all. Mutable."""

    iteration: int = 0

    def __call__(self) -> list[Any]:
        self.iteration += 1
        if self.iteration > BESIDES:
            raise EndOfLoop
        return [serving.aborting()] if self.iteration == 1 else []


class launching:
    """While entered, launches of these runners' graphs are counted, by runner and bucket."""

    def __init__(self, runners: dict[str, Any], launches: Counter[tuple[str, int]]) -> None:
        self._runners, self._launches = runners, launches

    def __enter__(self) -> None:
        engine.Graph.before_replay = self._count

    def __exit__(self, *_: object) -> None:
        engine.Graph.before_replay = None

    def _count(self, graph: object) -> None:
        for name, runner in self._runners.items():
            if size := captured_for(runner, graph).get("size"):
                self._launches[name, size] += 1
