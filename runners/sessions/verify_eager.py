"""A verify step without a CUDA graph, in a batch that is padded for data-parallel attention: when attention's
metadata is made, with which shapes, and with which shapes attention then runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from repro.cases.case import Case, Setup, Target
from repro.cases.layout import req_to_token
from runners.engines.active import engine
from runners.engines.staging import Tape
from runners.recording.observer import RunCase, Watch
from runners.releases import catalogue, model
from runners.releases.live import Live, mha_cache
from runners.releases.stood_in import stood_in
from runners.releases.verify_eager.family import Verified, verified, watched
from runners.sessions import memory
from runners.sessions.answers import see_memory
from runners.sessions.errors import attributed, sglang_errors


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

    def run(case: Case, watch: Watch) -> None:
        for number, step in enumerate(case.steps):
            Verify(part, live, number, verified(setup, step.requests, engine.device), watch).run()

    return attributed(run)


class Verify:
    """One verify step. What happens is recorded in order, as columns: when, how many tokens and requests the batch
    had."""

    def __init__(self, part: Callable[..., Any], live: Live, number: int, batch: Verified, watch: Watch) -> None:
        self.part, self.live, self.number, self.batch, self.watch = part, live, number, batch, watch
        self.columns: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.happened = 0

    def run(self) -> None:
        staging = Tape(self.watch, self.number)
        engine.memory_seen()
        staging.see("input", "req_pool_indices", self.batch.req_pool_indices)
        staging.see("input", "seq_lens", self.batch.seq_lens)
        staging.see("input", "busiest", self.batch.busiest)
        staging.flush()
        self.watch.at(self.number, "verify")
        try:
            with sglang_errors(), engine.hosted(), watched(self.live, self.part("BATCH"), self._tell):
                self.part("verify")(self.live, self.live.setup.runner, self.batch)
        finally:  # what happened before an error is what explains it
            for path, columns in self.columns.items():
                for name, values in columns.items():
                    staging.see(path, name, values)
            see_memory(staging)
            staging.flush()

    def _tell(self, path: str, forward_batch: Any, query: torch.Tensor | None = None) -> None:
        columns = self.columns[path]
        columns["at"].append(self.happened)
        columns["requests"].append(int(forward_batch.batch_size))
        columns["tokens"].append(len(forward_batch.input_ids) if query is None else len(query))
        if query is not None:
            self._tell_metadata(columns)
        self.happened += 1

    def _tell_metadata(self, columns: dict[str, list[int]]) -> None:
        """Of the metadata that attention runs with: how many queries and how many sequences it speaks of."""
        metadata = getattr(self.live.target.model_runner.attn_backend, "forward_metadata", None)
        indptr = getattr(metadata, "qo_indptr", getattr(metadata, "cu_seqlens_q", None))
        columns["planned_tokens"].append(-1 if indptr is None else int(indptr[-1]))
        columns["planned_requests"].append(-1 if indptr is None else len(indptr) - 1)
