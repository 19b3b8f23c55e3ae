"""Rounds: sglang's scheduler serves the requests of a case by graph, and once more without; texts, ends, what is left
and what each round hands on are recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from repro.cases.case import Case, Setup, Step, Target
from repro.cases.families import kv_dtype_of
from repro.cases.layout import Ints
from repro.cases.rows.adapters import adapter_of
from repro.cases.rows.requests import OF_TARGET, biases, has_grammar
from repro.cases.rows.serving import NOISE, STATE
from repro.cases.sharing import ranks_of, share_of
from repro.cases.updates import UPDATE
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.recording.observer import HarnessError, RunCase, Watch
from runners.releases import attention_calls, catalogue
from runners.releases.adapters.round import blocks
from runners.releases.adapters.round import scheduler as serving
from runners.releases.adapters.round.family import Wire
from runners.releases.adapters.stood_in import stood_in
from runners.releases.options import dsv4, grammar, lora, nan_logits, recurrent
from runners.releases.options.images import Images, images_of
from runners.releases.reference.drafts import Drafted
from runners.releases.reference.served import Judged
from runners.sessions import collectives, padded
from runners.sessions.afresh import Afresh, Texts
from runners.sessions.arrivals import Aborting, Clock, name_of, prompt, rows
from runners.sessions.errors import attributed, sglang_errors
from runners.sessions.freed import Frees
from runners.sessions.launches import Launches, stages
from runners.sessions.noise import NUDGE
from runners.sessions.observe.memory import see_memory
from runners.sessions.planner import Planner
from runners.sessions.rounds import Rounds, apart, drafts_of, not_numbers, number_of, off, states_off
from runners.sessions.state import State
from runners.sessions.teaching import Teachers
from runners.sessions.versions import Versions

Prompts = Sequence[Sequence[Ints]]
# What messages count of each request.
COUNTS = ("prompt_tokens", "completion_tokens", "spec_verify_ct", "spec_num_correct_drafts", "retraction_counts")
# The ways of which collectives are recorded, and their names there.
WAYS = {Recorded.ROUND_GRAPH: "graph", Recorded.ROUND_EAGER: "eager"}
# The most that rounding to three bits of mantissa moves a number, relative to it.
EIGHT_BITS = 1.0 + 2.0**-4


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
    rows = 1 if dsv4.is_compressed(scheduler.tp_worker.model_runner.token_to_kv_pool) else setup.page_size
    pages = (tensor[:rows] for tensor in serving.caches(scheduler).values())
    indexed = (pages[0] for pages in serving.index_caches(scheduler).values())
    engine.pad_into([*pages, *indexed, scheduler.req_to_token_pool.req_to_token[0]])
    served = Served(scheduler, wire, setup)

    def run(case: Case, watch: Watch) -> None:
        served.run(case, watch)

    return attributed(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way through a case. clock: where it ended. launches: of graphs, in words."""

    clock: Clock
    rounds: Rounds
    launches: str


class Served:
    """A scheduler and the cases that it serves, one after the other, each from the state right after capture. share: of
    this rank, whose tokens are the only ones in texts."""

    def __init__(self, scheduler: Any, wire: Wire, setup: Setup) -> None:
        self.scheduler, self.wire, self.setup, self.share = scheduler, wire, setup, share_of(setup)
        wire.others.prefills_max = setup.prefill_max_bs
        model = scheduler.tp_worker.model_runner
        self.versions = Versions(scheduler, setup)
        self.teachers = Teachers(scheduler, setup, self.versions)
        self._images: Images = {}
        self._adapters: Mapping[tuple[int, int], int] = {}
        self.at_start = serving.holdings(scheduler)
        self.adapting = serving.Adapting(scheduler)
        states = serving.states(scheduler)
        self.launches = Launches(
            scheduler=scheduler,
            setup=setup,
            stages=stages(scheduler, setup),
            others=wire.others,
            planner=Planner([scheduler.tp_worker, scheduler.draft_worker.draft_worker, *states.values()]),
        )
        self.adapting.start_over()
        owners = {"target": scheduler.tp_worker, "draft": scheduler.draft_worker.draft_worker or scheduler.draft_worker}
        owners |= {f"at {steps} draft steps": state for steps, state in states.items()}
        owners |= {"adapters": lora.residents(model) if setup.enable_lora else []}
        self.table = scheduler.req_to_token_pool.req_to_token
        self._start_table = self.table.clone()
        self._states = [state for layers in recurrent.of_kinds(model).values() for state in layers]
        caches = [*serving.caches(scheduler).values(), *serving.index_caches(scheduler).values()]
        others = [self.table, *caches, *self._states]
        self._start_state = State(owners, others).take()

    def run(self, case: Case, watch: Watch) -> None:
        self.teachers.prepare(case.steps)
        prompts = [[prompt(self.share, r.data, r.seq_len) for r in step.requests] for step in case.steps]
        if self.setup.nan_logits:
            for number, step in enumerate(case.steps):
                for row, request in enumerate(step.requests):
                    nan_logits.put_into(prompts[number][row], self.share, number, row, request.data)
        self._images = images_of(case, serving.embeddings(self.scheduler)) if self.setup.images else {}
        for (number, row), image in self._images.items():
            image.stand_in(prompts[number][row], self.share.vocab_size)
        self._adapters = {
            (step, row): adapter_of(self.setup, step, row, case.steps[step].requests[row].data)
            for step, row in _places(case.steps)
        }
        for number, texts in enumerate(prompts):
            watch.see(number, Recorded.INPUT, "seq_lens", np.array([len(text) for text in texts]))
            watch.see(number, Recorded.INPUT, "prompts", rows(texts))
        with Frees(self.scheduler, watch).watched() if engine.device == "cpu" else nullcontext():
            by_graph = self._go(case, prompts, watch, Recorded.ROUND_GRAPH, "graph")
        see_memory(StagingBuffer(watch, len(case.steps) - 1))
        whole = self._record(case, prompts, watch, by_graph)
        left = by_graph.clock.left()
        if left:
            self._end_all()
        self._see_holdings(watch)
        if not left and whole:
            self._see_afresh(whole, watch)
        if not left:
            self._go_without_graphs(case, prompts, watch, by_graph)
        self.versions.put(0)
        self._reset()

    def _see_afresh(self, texts: Texts, watch: Watch) -> None:
        """texts: prompt and text of each request, by its number."""
        cached = serving.counts(self.wire.sent, "cached_tokens")
        self._clear()
        with self._without_graphs(), sglang_errors():
            images = {number_of(name_of(*place)): image for place, image in self._images.items()}
            adapters = {number_of(name_of(*place)): adapter for place, adapter in self._adapters.items()}
            versions = {number_of(name_of(*place)): self.teachers.version(place[0]) for place in self._adapters}
            afresh = Afresh(self.scheduler, self.wire, self.versions, versions, images, adapters)
            lacking = {number for number, text in texts.items() if nan_logits.is_among(text, self.share)}
            afresh.see(texts, {number_of(rid): n for rid, n in cached.items()}, lacking, watch)
            self.scheduler.flush_cache()
            if kv_dtype_of(self.setup):
                self._clear()
                rounded = attention_calls.rounded(self.scheduler.tp_worker.model_runner.kv_cache_dtype)
                ways = (self.versions.moved(EIGHT_BITS), rounded)
                afresh.see_noise(texts, ways, watch)

    def _go_without_graphs(self, case: Case, prompts: Prompts, watch: Watch, by_graph: Way) -> None:
        """Serve the same again, and where a whole number differs as often as it takes to see whether rounding does it:
        token embeddings are moved by a few units in the last place."""
        nudge = NUDGE[self.scheduler.tp_worker.model_runner.dtype]
        for path, factor in (
            (Recorded.ROUND_EAGER, 1.0),
            (Recorded.ROUND_NUDGED_UP, 1 + nudge),
            (Recorded.ROUND_NUDGED_DOWN, 1 - nudge),
        ):
            with self._without_graphs(), self.versions.moved(factor):
                way = self._go(case, prompts, watch, path, "eager")
            if way.launches:
                raise HarnessError(f"graphs were launched without any: {way.launches}")
            if way.clock.left():
                self._end_all()
            with sglang_errors():
                self.scheduler.flush_cache()
            if path is Recorded.ROUND_EAGER and not apart(by_graph.rounds.arrays, way.rounds.arrays):
                return

    def _go(self, case: Case, prompts: Prompts, watch: Watch, path: Recorded, stage: str) -> Way:
        self._clear()
        self.adapting.start_over()
        # Whoever samples draws the same numbers each time, as two tokens can be exactly as likely in half precision.
        torch.manual_seed(sum(request.data for step in case.steps for request in step.requests))
        self.versions.put(0)
        scheduler = self.scheduler
        clock = Clock(
            case, prompts, self._images, self.wire, watch, scheduler.flush_cache, scheduler.is_fully_idle, self.versions
        )
        start = time.perf_counter()
        rounds = Rounds(self.scheduler, path, watch, self.share.vocab_size, masked=self.setup.grammar)
        follows = path is Recorded.ROUND_GRAPH
        padding = padded.seen(self.scheduler, watch) if follows and self.setup.dp_attention else nullcontext()
        ranked = ranks_of(self.setup) > 1 and path in WAYS
        calls = collectives.heard(self.scheduler, watch, WAYS[path]) if ranked else nullcontext()
        with sglang_errors(), self.launches.recorded(watch, rounds, follows=follows), rounds, padding, calls:
            serving.run(self.scheduler, self.wire, clock)
        watch.spent(stage, time.perf_counter() - start)
        counts = sorted(self.launches.counts.items())
        launches = ", ".join(f"{count} of {name} for {size}" for (name, size), count in counts)
        return Way(clock=clock, rounds=rounds, launches=launches)

    @contextmanager
    def _without_graphs(self) -> Iterator[None]:
        """Begin and end in the first state of an adaptive worker, as a switch of states sets graphs anew. Another
        rank decodes nothing meanwhile, so that no batch is padded."""
        self.adapting.start_over()
        self.wire.others.decodes = False
        in_blocks = serving.drafts_blocks(self.scheduler)
        with serving.without_graphs(self.scheduler), blocks.typed() if in_blocks else nullcontext():
            try:
                yield
            finally:
                self.wire.others.decodes = True
                self.adapting.start_over()

    def _reset(self) -> None:
        """Return to the state right after capture: the next case finds nothing of this one in the request table, nor
        behind the real rows of attention's metadata."""
        self.adapting.start_over()
        self._start_state.put_back()
        self.table.copy_(self._start_table)

    def _clear(self) -> None:
        self.wire.sent.clear()
        engine.memory_seen()
        for tensor in (*serving.caches(self.scheduler).values(), *serving.index_caches(self.scheduler).values()):
            tensor.zero_()
        for state in self._states:  # of a request's first token the worker clears it
            state.fill_(torch.nan)

    def _record(self, case: Case, prompts: Prompts, watch: Watch, way: Way) -> Texts:
        """Prompt and text of each request that was not aborted, by its number."""
        start = time.perf_counter()
        tokens, ended = serving.outputs(self.wire.sent)
        lacking = {place for place in _places(case.steps) if self._lacks_numbers(prompts, place, tokens)}
        judged = {
            place: self._judged(prompts, place, text)
            for place in _places(case.steps)
            if (text := tokens.get(name_of(*place))) and (self.setup.nan_logits != OF_TARGET or place not in lacking)
        }
        lengths = {name_of(*place): len(prompts[place[0]][place[1]]) for place in judged}
        returned, states = serving.logprobs(self.wire.sent), serving.hidden_states(self.wire.sent)
        prompted = serving.prompt_logprobs(self.wire.sent)
        moved = {name_of(*place): each.states_off(states.get(name_of(*place), ())) for place, each in judged.items()}
        distances = off(way.rounds, lengths, {name_of(*place): each.logits for place, each in judged.items()})
        reported = {name: serving.counts(self.wire.sent, name) for name in COUNTS}
        unknown = {name_of(*place) for place in lacking}
        known = {rid: each for rid, each in drafts_of(way.rounds).items() if rid not in unknown}
        drafted = self._judgeable(known, lengths, reported["retraction_counts"])
        kept = states_off(way.rounds, lengths, {name_of(*place): each.kept for place, each in judged.items()})
        for number, step in enumerate(case.steps):
            places = [(number, row) for row in range(len(step.requests))]
            names = [name_of(*place) for place in places]
            watch.see(number, Recorded.SERVED, "tokens", rows([tokens.get(name, []) for name in names]))
            watch.see(number, Recorded.SERVED, "ended", np.array([ended.get(name, 0) for name in names]))
            watch.see(number, Recorded.SERVED, "aborted", np.array([name in way.clock.aborted for name in names]))
            if step.happens == UPDATE:
                watch.see(number, Recorded.SERVED, "update", np.array([number not in way.clock.refusals]))
            if self.setup.nan_logits:
                self._see_numbers(watch, number, places, lacking, way)
            watch.see(number, Recorded.SERVED, "off", rows([distances.get(name, ()) for name in names], np.float64))
            watch.see(number, Recorded.SERVED, "returned", rows([returned.get(name, ()) for name in names], np.float64))
            watch.see(number, Recorded.SERVED, "prompt", rows([prompted.get(name, ()) for name in names], np.float64))
            for count, of_requests in reported.items():
                watch.see(number, Recorded.SERVED, count, np.array([of_requests.get(name, -1) for name in names]))
            watch.see(number, Recorded.SERVED, "states", rows([moved.get(name, ()) for name in names], np.float64))
            _see_judged(watch, number, [judged.get(place) for place in places])
            self._see_drafts(watch, number, [judged.get(place) for place in places], drafted)
            for name, each in kept.items():
                watch.see(number, Recorded.SERVED, name, rows([each.get(rid, ()) for rid in names], np.float64))
        if self.teachers.unjudged:
            watch.fact("drafts", f"not judged, as {self.teachers.unjudged}")
        behind = np.concatenate([each.behind for each in judged.values() if each] or [np.empty(0)])
        missing = int(np.isnan(behind).sum())
        if self.setup.index_topk:
            watch.fact("choices", f"rounding may turn the choice of keys of {missing} of {behind.size} tokens")
        elif missing:
            raise HarnessError(f"the float64 pass gives no numbers for {missing} of {behind.size} tokens")
        for number, words in way.clock.refusals.items():
            watch.fact(f"update refused in step {number}", words)
        watch.fact("launches", way.launches or "none")
        watch.fact("iterations", str(way.clock.iteration))
        watch.fact("cached tokens", str(sum(serving.counts(self.wire.sent, "cached_tokens").values())))
        watch.fact("retractions", str(sum(serving.counts(self.wire.sent, "retraction_counts").values())))
        watch.spent("record", time.perf_counter() - start)
        served = (place for place in judged if ended.get(name_of(*place)) == serving.FINISHED)
        return {
            number_of(name_of(number, row)): [*prompts[number][row].tolist(), *tokens[name_of(number, row)]]
            for number, row in served
        }

    def _judged(self, prompts: Prompts, place: tuple[int, int], text: Sequence[int]) -> Judged:
        """A request's text against float64, with its biases, and among the tokens that its grammar allows."""
        number, row = place
        added = torch.zeros(len(text), self.share.vocab_size, dtype=torch.float64)
        for token, bias in biases(self.share, number, row).items():
            added[:, token] += bias
        if has_grammar(self.setup, number, row):
            added += grammar.along(self.share.vocab_size, list(text))
        teacher = self.teachers.of(number)
        return teacher.judge(prompts[number][row], text, added, self._images.get(place), self._adapters[place])

    def _lacks_numbers(self, prompts: Prompts, place: tuple[int, int], tokens: Mapping[str, Sequence[int]]) -> bool:
        """True of a request behind one of whose tokens logits are not numbers. tokens: texts by names."""
        number, row = place
        whole = [*prompts[number][row].tolist(), *tokens.get(name_of(number, row), ())]
        return nan_logits.is_among(whole, self.share)

    def _see_numbers(
        self, watch: Watch, number: int, places: Sequence[tuple[int, int]], lacking: set[tuple[int, int]], way: Way
    ) -> None:
        """Record which requests of a step have no right text, and how many of their logits are not numbers."""
        missing = [self.setup.nan_logits == OF_TARGET and place in lacking for place in places]
        watch.see(number, Recorded.SERVED, "without_numbers", np.array(missing))
        counts = not_numbers(way.rounds)
        watch.see(
            number, Recorded.SERVED, "not_numbers", np.array([counts.get(name_of(*place), 0) for place in places])
        )

    def _see_drafts(
        self, watch: Watch, number: int, judged: Sequence[Judged | None], drafted: Mapping[str, Any]
    ) -> None:
        """Record how far drafts lie behind those that the draft model would make in float64."""
        behind = [
            self.teachers.of(number).behind(each, drafted.get(name_of(number, row), ())) if each else ([], 0.0)
            for row, each in enumerate(judged)
        ]
        watch.see(number, Recorded.SERVED, "drafts", rows([apart for apart, _ in behind], np.float64))
        watch.see(number, Recorded.SERVED, "drafts_noise", np.array([noise for _, noise in behind]))

    def _judgeable(
        self, drafted: Mapping[str, Sequence[Drafted]], lengths: Mapping[str, int], retracted: Mapping[str, int]
    ) -> Mapping[str, Sequence[Drafted]]:
        """Drop drafts of later layers where their KV rows come of another request,
        several chunks, or a prefill behind a retraction."""
        if not serving.is_layered(self.scheduler):
            return drafted
        cached = serving.counts(self.wire.sent, "cached_tokens")
        chunk = self.setup.chunk or max(lengths.values(), default=0)
        whole = {rid for rid, length in lengths.items() if length <= chunk}
        whole -= {rid for rid in whole if cached.get(rid) or retracted.get(rid)}
        return {rid: each if rid in whole else [drafts.first() for drafts in each] for rid, each in drafted.items()}

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


def _places(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """The place of each request."""
    return ((number, row) for number, step in enumerate(steps) for row in range(len(step.requests)))


def _see_judged(watch: Watch, number: int, judged: Sequence[Judged | None]) -> None:
    watch.see(number, Recorded.SERVED, "best", rows([each.best if each else () for each in judged]))
    watch.see(number, Recorded.SERVED, "behind", rows([each.behind if each else () for each in judged], np.float64))
    watch.see(number, Recorded.SERVED, "likely", rows([each.likely if each else () for each in judged], np.float64))
    prompts = rows([each.prompt if each else () for each in judged], np.float64)
    watch.see(number, Recorded.SERVED, "prompt_likely", prompts)
    for layer in sorted({layer for each in judged if each for layer in each.kept_noise}):
        reach = [each.kept_noise[layer] if each else 0.0 for each in judged]
        watch.see(number, Recorded.SERVED, f"{NOISE}{STATE}{layer}", np.array(reach))
    for name in ("noise", "prompt_noise", "states_noise"):
        watch.see(number, Recorded.SERVED, name, np.array([getattr(each, name) if each else 0.0 for each in judged]))
