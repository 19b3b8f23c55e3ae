"""A verify step without a CUDA graph, in a batch that is padded for data-parallel attention: when attention's
metadata is made, with which shapes, with which shapes attention then runs, and what comes of it, beside a reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from repro.cases.case import Case, Request, Setup, Target
from repro.cases.layout import Ints, req_to_token
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.recording.observer import RunCase, Watch
from runners.releases import catalogue, model
from runners.releases.adapters.stood_in import stood_in
from runners.releases.adapters.verify_eager.family import Verified, verified, watched
from runners.releases.adapters.verify_eager.ranks import ranks_told
from runners.releases.backends.full_layers import of_full_layers
from runners.releases.live import Live, mha_cache
from runners.releases.reference.target import verify_chain
from runners.sessions import memory
from runners.sessions.errors import attributed, sglang_errors
from runners.sessions.observe.memory import see_memory
from runners.sessions.third_opinion import ThirdOpinion
from runners.sessions.unmade import unmade


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Build the workers; no graph is captured."""
    release = catalogue.present_release()
    part = catalogue.parts(release, setup.runner)
    watch.fact("adapter", catalogue.adapter_name(release, setup.runner))
    watch.fact("objects", stood_in(setup.runner))
    with model.folders(model.llama(setup), model.llama(setup, "LlamaForCausalLMEagle")) as folders:
        live: Live = part("build")(setup, engine.device, folders)
    runner = live.target.model_runner
    model.fill_weights(runner.model)
    table = req_to_token(setup)
    memory.fill_table(runner.req_to_token_pool.req_to_token, table)
    memory.fill_cache(mha_cache(runner), table)
    if engine.device == "cpu":
        part("pose_as_cuda")()

    cache = _Cache(live, setup, table)

    def run(case: Case, watch: Watch) -> None:
        for number, step in enumerate(case.steps):
            batch = verified(setup, step.requests, engine.device)
            Verify(part, live, number, step.requests, batch, cache, watch).run()

    return attributed(run)


class _Cache:
    """The target's KV cache, and what a verify should leave in it and give."""

    def __init__(self, live: Live, setup: Setup, table: Ints) -> None:
        self.setup, self.table, self.kv = setup, table, mha_cache(live.target.model_runner)
        dtype: torch.dtype = live.target.model_runner.dtype
        self.opinion = ThirdOpinion(partial(verify_chain, live), setup, dtype)
        values = memory.filled_from(self.kv[0][0].numel(), self.kv[0].device, dtype)
        self._filling = memory.Filling(self.kv, values)

    def own(self, request: Request) -> Ints:
        """The KV slots of a request's tree."""
        slots: Ints = self.table[request.slot, request.seq_len : request.seq_len + self.setup.num_draft_tokens]
        return slots

    def fill(self, step: int, requests: tuple[Request, ...]) -> list[torch.Tensor]:
        """Put the requests' prefixes there, and elsewhere what differs from step to step. What is there then."""
        prefixes = [(r, self.table[r.slot, : r.seq_len]) for r in requests]
        taken = np.concatenate([slots for _, slots in prefixes])
        self._filling.fill(step, prefixes, np.setdiff1d(np.unique(self.table[1:]), taken))
        return memory.copied(self.kv)


class Verify:
    """One verify step. What happens is recorded in order, as columns: when, how many tokens and requests the batch
    had."""

    def __init__(
        self,
        part: Callable[..., Any],
        live: Live,
        number: int,
        requests: tuple[Request, ...],
        batch: Verified,
        cache: _Cache,
        watch: Watch,
    ) -> None:
        self.part, self.live, self.number, self.watch = part, live, number, watch
        self.requests, self.batch, self.cache = requests, batch, cache
        self.columns: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.happened = 0
        self.outputs: dict[str, torch.Tensor] = {}
        self.ranks: dict[str, list[int]] = {}

    def run(self) -> None:
        staging = StagingBuffer(self.watch, self.number)
        before = self.cache.fill(self.number, self.requests)
        # A pass that writes where it must not may change them.
        tokens = self.batch.tokens.cpu().clone().view(len(self.requests), -1)
        engine.memory_seen()
        staging.see(Recorded.INPUT, "req_pool_indices", self.batch.req_pool_indices)
        staging.see(Recorded.INPUT, "seq_lens", self.batch.seq_lens)
        staging.see(Recorded.INPUT, "busiest", self.batch.busiest)
        staging.see(Recorded.INPUT, "out_cache_loc", np.stack([self.cache.own(request) for request in self.requests]))
        staging.flush()
        self.watch.at(self.number, "verify")
        try:
            with sglang_errors(), engine.hosted(), watched(self.live, self.part("BATCH"), self._tell):
                self.part("verify")(self.live, self.live.setup.runner, self.batch, self._constructed)
        finally:  # what happened before an error is what explains it
            for path, columns in self.columns.items():
                for name, values in columns.items():
                    staging.see(path, name, values)
            for name, counts in self.ranks.items():
                staging.see(Recorded.RANKS, name, counts)
            see_memory(staging)
            staging.flush()
        self._see_results(staging, before, tokens)

    def _see_results(self, staging: StagingBuffer, before: list[torch.Tensor], tokens: torch.Tensor) -> None:
        """Record what the pass gave and wrote, and what it should have. tokens: of the trees, one row a request."""
        cache = self.cache
        for name, tensor in self.outputs.items():
            staging.see(Recorded.EAGER, name, tensor)
        staging.see(Recorded.EAGER, "kv_slots", memory.changed_slots(cache.kv, before), as_slots=True)
        staging.flush()
        self.watch.at(self.number, "reference")
        opinion = cache.opinion.on(self.requests, {"tokens": tokens}, cache.table, before, {}) or {}
        for name, array in opinion.items():
            staging.see(Recorded.REFERENCE, name, array)
        if opinion:
            slots = torch.from_numpy(opinion["kv_slots"]).to(cache.kv[0].device)
            staging.see(Recorded.REFERENCE, "kv_eager", memory.contents(cache.kv, slots))
        staging.flush()

    def _constructed(self, worker: Any) -> None:
        """Every step's worker is constructed alike: the first one's is looked at."""
        for name in ("compared", *unmade({"worker": worker})) if self.number == 0 else ():
            self.watch.see(-1, Recorded.UNMADE, name, np.asarray(1))

    def _sampling(self, output: Any) -> None:
        """Keep what would be sampled from."""
        names = {"logits": "next_token_logits", "hidden_states": "hidden_states"}
        outputs = {name: getattr(output, attribute, None) for name, attribute in names.items()}
        self.outputs = {name: tensor.clone() for name, tensor in outputs.items() if isinstance(tensor, torch.Tensor)}

    def _tell(self, path: str, forward_batch: Any, query: torch.Tensor | None = None) -> None:
        if path == "sampling":
            self._sampling(forward_batch)
            return
        columns = self.columns[path]
        columns["at"].append(self.happened)
        columns["requests"].append(int(forward_batch.batch_size))
        columns["tokens"].append(len(forward_batch.input_ids) if query is None else len(query))
        if query is not None:
            self._tell_metadata(columns)
        if path == Recorded.PADDING:
            self.ranks = ranks_told(forward_batch)
        self.happened += 1

    def _tell_metadata(self, columns: dict[str, list[int]]) -> None:
        """Record the numbers of queries and of sequences in the metadata that attention runs with."""
        metadata = getattr(of_full_layers(self.live.target.model_runner.attn_backend), "forward_metadata", None)
        indptr = getattr(metadata, "qo_indptr", getattr(metadata, "cu_seqlens_q", None))
        columns["planned_tokens"].append(-1 if indptr is None else int(indptr[-1]))
        columns["planned_requests"].append(-1 if indptr is None else len(indptr) - 1)
