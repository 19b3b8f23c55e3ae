"""The launches of the graphs of a scheduler's workers, each recorded as a session of that graph's runner records its
own: the batch, the buffers, attention's metadata and plans. So the same oracles judge them."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from repro.cases.buffer_facts import TOKENS_SECOND
from repro.cases.case import Request, Setup
from repro.cases.layout import req_to_token
from repro.cases.releases import release_order
from repro.cases.rows.serving import BLOCK, ELSEWHERE, FREED, GREEDY, PREFILL, launched, layer_name, runner_of
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.releases import catalogue
from runners.releases.adapters.round import scheduler as serving
from runners.releases.adapters.round import table
from runners.releases.adapters.round.collectives import CALLS
from runners.releases.adapters.round.others import Others
from runners.releases.backends import paged_calls
from runners.releases.live import Family, Given, Live
from runners.releases.options import blocks, dp_ranks
from runners.releases.options.rejection import TOP_KS
from runners.sessions import layers
from runners.sessions.asked import Asked
from runners.sessions.extents import extents
from runners.sessions.observe.bucket import captured_for
from runners.sessions.planner import Planner
from runners.sessions.rounds import Rounds
from runners.sessions.wrapped import wrapped

# The runner of the layers of a draft; and that of a draft that reads the target's KV cache, whose batches have a row
# for each branch.
_LAYERED, _FROZEN = "multi_layer", "frozen_kv_mtp"
# What loads a batch into a runner's buffers ahead of its replay, and what replays; newest first.
_LOADS, _REPLAYS = ("load_batch", "replay_prepare"), ("execute", "replay")
# Functions that had an access made, the innermost: behind them is the scheduler's loop.
CALLERS_MAX = 12
# The draft's result, by which the tree of the verify behind it is judged.
_DRAFTS = ("parents", "scores_index", "tokens")
_DRAFTING = ("draft", _FROZEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A graph runner of the workers, and what is known of its kind. name: of its graphs. named: what a session gives
    its batches."""

    name: str
    kind: str
    runner: Any
    live: Live
    family: Family
    neutral: Mapping[str, int]
    buffers: Mapping[str, torch.Tensor]
    named: frozenset[str]


def stages(scheduler: Any, setup: Setup) -> list[Stage]:
    """One for each graph runner that there is, and for each layer that has graphs of its own."""
    return [
        _stage(scheduler, setup, layer_name(name, layer) if layer else name, each)
        for name, runner in serving.graphs(scheduler)
        for layer, each in enumerate(layers.launched_alone(runner) if layers.are_launched(runner) else [runner])
    ]


def _stage(scheduler: Any, setup: Setup, name: str, runner: Any) -> Stage:
    kind = runner_of(name)
    part = catalogue.parts(catalogue.present_release(), kind)
    family: Family = part("FAMILY")
    alone = launched(setup, name)
    draft = scheduler.draft_worker.draft_worker
    live = Live(
        setup=alone,
        device=engine.device,
        args=scheduler.server_args,
        target=draft if name == BLOCK else scheduler.tp_worker,
        draft=draft,
    )
    buffers = family.input_buffers(runner)
    tensors = {each: getattr(buffers, each, None) for each in family.buffers}
    return Stage(
        name=name,
        kind=kind,
        runner=runner,
        live=live,
        family=family,
        neutral=part("neutral")(live),
        buffers={each: tensor for each, tensor in tensors.items() if tensor is not None},
        named=frozenset(family.given(alone, req_to_token(alone), [Request(slot=1, seq_len=1, data=0)])),
    )


@dataclass(slots=True)
class Launches:
    """Records launches while entered. Mutable: it counts them, and knows the one that is being made."""

    scheduler: Any
    setup: Setup
    stages: list[Stage]
    planner: Planner
    others: Others
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: list[StagingBuffer] = field(default_factory=list)
    watch: Watch | None = None
    rounds: Rounds | None = None  # in which they are made
    lifetimes: Any = None  # of outputs, where the engine knows (runners/engines/lifetime.py)
    order: Any = None  # of streams, the same (runners/engines/order.py)
    _open: Stage | None = None
    _given: Given = field(default_factory=dict)
    _drafted: Mapping[str, torch.Tensor] = field(default_factory=dict)
    _neutral: set[str] = field(default_factory=set)

    @contextmanager
    def recorded(self, watch: Watch, rounds: Rounds, *, follows: bool) -> Iterator[None]:
        """While entered, all launches are recorded and counted. follows: the order of streams is followed, too."""
        self.watch, self.rounds, self._open, self._drafted = watch, rounds, None, {}
        self.counts, self.made, self._neutral = Counter(), [], set()
        self.lifetimes = _of_emulation("lifetime", "Lifetimes")
        self.order = _of_emulation("order", "Order", by_row=self._by_row()) if follows else None
        questions = Asked(self.setup)
        engine.Graph.before_replay = self._launched
        try:
            with ExitStack() as stack:
                if self.lifetimes is not None:
                    stack.enter_context(self.lifetimes.watched())
                if self.order is not None:
                    stack.enter_context(self.order.watched())
                stack.enter_context(self.planner.listened(self._planned))
                for stage in self.stages:
                    if stage.kind != _LAYERED:
                        stack.enter_context(wrapped(stage.runner, _LOADS, self._loading(stage)))
                        stack.enter_context(wrapped(stage.runner, _REPLAYS, self._replaying(stage)))
                runners, prefills = dict(serving.graphs(self.scheduler)), serving.prefills(self.scheduler)
                stack.enter_context(questions.listened(runners, prefills))
                for runner in runners.values():
                    if layers.are_launched(runner):
                        stack.enter_context(self._layers(runner).listened())
                for runner in prefills:
                    stack.enter_context(wrapped(runner, _REPLAYS, self._prefilling(runner)))
                if serving.drafts_from_table(self.scheduler):
                    stack.enter_context(table.listened(self.scheduler.draft_worker, self._tabled))
                yield
            for staging in self.made:
                staging.flush()
            questions.see(watch)
            self._see_late(watch)
            self._see_races(watch)
        finally:
            engine.Graph.before_replay = None

    def _by_row(self) -> frozenset[int]:
        """The request table, and the list of sliding layers' KV slots where they have their own, but in releases that
        order all accesses to them. What the scheduler writes in that list is of slots that it takes or frees: a forward
        under way reads it for a request that has ended, whose result is dropped. So it does where these releases wait
        for a plan's reads alone, and NGRAM moves accepted rows behind them."""
        is_first = release_order(catalogue.present_release()) < release_order(blocks.ORDERED_SINCE)
        pool = self.scheduler.tp_worker.model_runner.token_to_kv_pool
        written = [getattr(pool, "full_to_swa_index_mapping", None)]
        if not hasattr(self.scheduler, "_apply_war_barrier") or (serving.drafts_blocks(self.scheduler) and is_first):
            written.append(self.scheduler.req_to_token_pool.req_to_token)
        elif not serving.drafts_from_table(self.scheduler):
            return frozenset()
        return frozenset(each.untyped_storage()._cdata for each in written if each is not None)

    def _see_late(self, watch: Watch) -> None:
        """Reads of outputs over which another replay has gone, in words; and how many replays were watched."""
        if self.lifetimes is None or not self.lifetimes.replays:
            return
        watch.see(-1, Recorded.LIFETIME, "replays", np.asarray(len(self.lifetimes.replays)))
        for read in self.lifetimes.late:
            words = f"{read.reader}, behind {', '.join(read.between)}".encode()
            watch.see(-1, Recorded.LIFETIME, f"{read.graph} read by {read.reader}", np.frombuffer(words, np.uint8))

    def _see_races(self, watch: Watch) -> None:
        """Accesses that no event orders, in words; and how many accesses were looked at."""
        if self.order is None:
            return
        watch.see(-1, Recorded.ORDER, "accesses", np.asarray(int(self.order.accesses > 0)))
        for race in self.order.races.values():
            first, second = _asked_for(race.first.callers), _asked_for(race.callers)
            words = (
                f"{race.first.place} on {race.first.stream}{first}, {race.second.place} on {race.second.stream}{second}"
            )
            watch.see(
                -1,
                Recorded.ORDER,
                f"{race.kind}: {race.second.place} and {race.first.place}",
                np.frombuffer(words.encode(), np.uint8),
            )

    def _loading(self, stage: Stage) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapping(loads: Callable[..., Any]) -> Callable[..., Any]:
            def load(batch: Any, *args: Any, **kwargs: Any) -> Any:
                self._begin(stage, batch)
                return loads(batch, *args, **kwargs)

            return load

        return wrapping

    def _replaying(self, stage: Stage) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapping(replays: Callable[..., Any]) -> Callable[..., Any]:
            def replay(batch: Any, *args: Any, **kwargs: Any) -> Any:
                self._begin(stage, batch)
                returned = self._handed(replays(batch, *args, **kwargs))
                if stage.kind in _DRAFTING:
                    self._drafted = {name: each.clone() for name, each in zip(_DRAFTS, returned, strict=False)}
                return returned

            return replay

        return wrapping

    def _handed(self, returned: Any) -> Any:
        """Hand on the results of a replay, whose readers are watched from here on."""
        self._open = None
        if self.order is not None:
            self.order.handed(returned)
        return returned if self.lifetimes is None else self.lifetimes.handed(returned)

    def _tabled(self, parents: torch.Tensor) -> None:
        self._drafted = {"tree_parents": parents}

    def _layers(self, runner: Any) -> layers.Layers:
        its = [stage for stage in self.stages if stage.kind == _LAYERED]

        def begun(layer: int, batch: Any, moved: Mapping[str, torch.Tensor]) -> None:
            self._begin(its[layer], batch, moved)

        return layers.Layers(runner=runner, begun=begun, ended=self._handed)

    def _prefilling(self, runner: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Its launches are counted, by the tokens of their graph; what they give is judged by the texts alone."""

        def wrapping(replays: Callable[..., Any]) -> Callable[..., Any]:
            def replay(batch: Any, *args: Any, **kwargs: Any) -> Any:
                sizes = runner.capture_num_tokens
                self.counts[PREFILL, sizes[bisect_left(sizes, len(batch.input_ids))]] += 1
                returned = replays(batch, *args, **kwargs)
                return returned if self.lifetimes is None else self.lifetimes.handed(returned)

            return replay

        return wrapping

    def _begin(self, stage: Stage, batch: Any, moved: Mapping[str, torch.Tensor] = MappingProxyType({})) -> None:
        """A batch is handed to a runner: once before it is loaded, or before it is replayed. moved: what is not as it
        says."""
        if self._open is stage or not (batch.batch_size or self.setup.dp_attention):
            return
        assert self.watch is not None
        self._open = stage
        self.made.append(StagingBuffer(self.watch, len(self.made)))
        branches = stage.live.setup.topk if stage.kind == _FROZEN else 1
        count = int(batch.batch_size) // branches
        fields = {name: value for name, value in stage.family.caller(batch).items() if value is not None}
        fields |= {**_counts(batch), **moved}
        for name, value in fields.items():
            by_token = _by_token(name, value)
            self._see(Recorded.BEFORE, name, by_token)
            if name in stage.named:
                self._see(Recorded.INPUT, name, by_token, rows=count)
        if stage.kind == "verify":
            for name, value in self._drafted.items():
                self._see(Recorded.INPUT, name, value, rows=count)
            self._drafted = {}  # the next one may be drafted without a graph
        rows, slots = self.scheduler.req_to_token_pool.req_to_token, batch.req_pool_indices[::branches]
        self._see(Recorded.INPUT, "req_to_token", torch.cat((rows[:1], rows[slots.long()])))
        if stage.live.setup.dp_attention:
            self._see(Recorded.INPUT, ELSEWHERE, self.others.batch_size)
        if self.rounds is not None and self.rounds.freed:
            self._see(Recorded.INPUT, FREED, np.array([rid in self.rounds.freed for rid in batch.rids or ()]))
        if TOP_KS in fields:
            self._see(Recorded.INPUT, GREEDY, int(batch.sampling_info.is_all_greedy))
        self._given = _lengths(stage, batch)
        self.made[-1].hold()

    def _launched(self, graph: Any) -> None:
        stage = self._open
        name = stage.kind if stage is not None else PREFILL
        CALLS.replayed(graph)
        if self.lifetimes is not None:
            self.lifetimes.replayed(name, graph.memory())
        if self.order is not None:
            self.order.replayed(graph, name)
        if stage is None:
            return
        size = captured_for(stage.runner, graph)
        if "size" in size:
            self.counts[stage.name, size["size"]] += 1
        for name, number in size.items():
            self._see(Recorded.LAUNCHED, name, number)
        for name, counts in dp_ranks.gathered(stage.runner).items() if stage.live.setup.dp_attention else ():
            self._see(Recorded.GATHERED, name, counts)
        bs, raw_bs = stage.family.sizes(stage.runner)
        self._see(Recorded.LAUNCH, "bs", bs)
        self._see(Recorded.LAUNCH, "raw_bs", raw_bs)
        for name, tensor in stage.buffers.items():
            self._see(Recorded.LAUNCH, name, _by_token(name, tensor), rows=self.setup.max_bs)
        if not stage.family.metadata_after(stage.live.setup):
            with paged_calls.calls.launched(graph):
                metadata = stage.family.metadata(stage.live, stage.runner, bs, self._given)
            for name, tensor in metadata.items():
                self._see(Recorded.METADATA, name, tensor)
        self._see_neutral(stage)
        self.made[-1].hold()

    def _planned(self, call: int, batch: Mapping[str, object], arguments: Mapping[str, Any]) -> None:
        if self._open is None:
            return
        for name, value in batch.items():
            self._see(Recorded.PLANNED, name, value)
        self.made[-1].see_numbers(
            Recorded.ROUND_LAUNCH,
            {self._name(Recorded.EXTENTS, name): count for name, count in extents(arguments).items()},
        )
        self.made[-1].hold()

    def _see_neutral(self, stage: Stage) -> None:
        """The values of padding, with the first launch of each runner."""
        if stage.name not in self._neutral:
            self._neutral.add(stage.name)
            for name in stage.buffers:
                self._see(Recorded.NEUTRAL, name, np.asarray(stage.neutral.get(name.removesuffix("_cpu"), 0)))

    def _see(self, path: Recorded, name: str, value: object, rows: int = 0) -> None:
        self.made[-1].see(Recorded.ROUND_LAUNCH, self._name(path, name), value, rows=rows)

    def _name(self, path: Recorded, name: str) -> str:
        assert self._open is not None
        return f"{self._open.name}/{path}/{name}"


def _of_emulation(module: str, name: str, **arguments: Any) -> Any:
    """One of the class of this name; None on a GPU, where reads are not seen."""
    if engine.device != "cpu":
        return None
    return getattr(importlib.import_module(f"runners.engines.{module}"), name)(**arguments)


def _asked_for(callers: Sequence[str]) -> str:
    """For a person; empty if there are none."""
    return f" (asked for in {', '.join(callers[:CALLERS_MAX])})" if callers else ""


def _by_token(name: str, value: Any) -> Any:
    """A batch's or a buffer's value, [tokens, ...]."""
    return value.T if name in TOKENS_SECOND else value


def _counts(batch: Any) -> Mapping[str, object]:
    """The counts of a draft-extend batch, under today's names."""
    spec = batch.spec_info
    names = {
        "num_accept_tokens": ("num_accept_tokens", "num_accepted_tokens", "accept_length"),
        "num_correct_drafts": ("num_correct_drafts", "num_accepted_drafts"),
    }
    fields = {
        today: next((getattr(spec, old) for old in older if getattr(spec, old, None) is not None), None)
        for today, older in names.items()
    }
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}


def _lengths(stage: Stage, batch: Any) -> Given:
    """The lengths by which is known how much of the metadata a batch can use: on a GPU, which is not waited for, the
    most that there may be."""
    if engine.device == "cpu":
        return {"seq_lens": batch.seq_lens.numpy().astype(np.int64)}
    return {"seq_lens": np.full(int(batch.batch_size), stage.live.setup.context_len, dtype=np.int64)}
