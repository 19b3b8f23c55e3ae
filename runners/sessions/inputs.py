"""The batch of a step, and the memory that its call finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from repro.cases import case
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.layout import page_copies
from repro.traces.paths import Recorded
from repro.traces.trace import Array
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.releases.live import Given, Rows
from runners.sessions import memory
from runners.sessions.captured import Captured
from runners.sessions.errors import sglang_errors


class Inputs:
    """The inputs of one step. Mutable: other models may add to the batch before the call."""

    def __init__(self, captured: Captured, number: int, step: case.Step, watch: Watch) -> None:
        self.captured, self.number, self.asked, self.watch = captured, number, step, watch
        self.setup, self.family, self.requests = captured.setup, captured.adapter.family, step.requests
        self.hidden = captured.asks(step.hidden, number, watch)
        self._mirrored = (step.mirrored and self.setup.mirrored) or captured.planner.needs_host_lengths
        if captured.lay_out(step.layout):
            watch.see(number, Recorded.INPUT, "req_to_token", captured.table)
        self.staging = StagingBuffer(watch, number, captured.known)
        self.shown: dict[str, torch.Tensor] = {}  # the batch, one row a request
        self.given = self._given()
        self.rows = self._rows()

    def fill(self) -> None:
        """Have memory and batch as the call finds them."""
        self._fill_cache()
        self._prepare()

    def batch(self, rows: Rows) -> Any:
        """These rows as sglang's batch, which takes the tensors for its own."""
        with sglang_errors(wait=False):
            batch = self.captured.adapter.batch(self.captured.live, rows)
        if not self.requests:
            batch.forward_mode = type(batch.forward_mode).IDLE
        if self.hidden:
            batch.capture_hidden_mode = type(batch.capture_hidden_mode)[self.hidden.upper()]
        if not self._mirrored:
            batch.seq_lens_cpu = batch.seq_lens_sum = None
        return batch

    def batch_for_graph(self, rows: Rows | None = None) -> Any:
        """A batch that a graph may be replayed for. rows: those of the step, copied, unless others are given."""
        batch = self.batch(rows or self.rows.copied())
        self.captured.tell_ranks(batch, self.asked)
        return batch

    def _given(self) -> Given:
        """The batch as host arrays, one row per request."""
        table = self.captured.table
        if self.requests:
            return self.family.given(self.setup, table, self.requests)
        anybody = self.family.given(self.setup, table, [case.Request(slot=1, seq_len=1, data=0)])
        return {name: array[:0] for name, array in anybody.items()}

    def _rows(self) -> Rows:
        """The batch as sglang takes it, and recorded as such: what `input` says is what was handed over."""
        put: dict[str, torch.Tensor | Array] = {}
        for name, array in self.given.items():
            value = torch.from_numpy(array).to(self.captured.dtype) if name in self.family.noisy else array
            self.staging.see(Recorded.INPUT, name, value, rows=len(self.requests))
            self.shown[name] = torch.as_tensor(value)
            put[name] = value.reshape(-1) if name in self.family.flat else value
        return Rows.put(len(self.requests), put, self.captured.device)

    def _prepare(self) -> None:
        """Add to the batch what other models make of it."""
        captured = self.captured
        if captured.adapter.prepare is None or not self.requests:
            return
        self.staging.hold()
        self.watch.at(self.number, "prepare")
        with captured.timed("eager", self.watch):
            prepared = captured.adapter.prepare(captured.live, self.rows.copied())
        captured.wait_for("eager", self.watch)
        for name, tensor in prepared.items():
            self.staging.see(Recorded.INPUT, name, tensor, rows=len(self.requests))
            self.shown[name] = tensor.view(len(self.requests), tensor.numel() // len(self.requests))
        self.rows = self.rows.joined(prepared)

    def _fill_cache(self) -> None:
        captured, table = self.captured, self.captured.table
        prefixes = [(r, table[r.slot, : self.family.prefix(self.setup, r)]) for r in self.requests]
        drafts = np.asarray(self.given.get("out_cache_loc", np.empty(0)), dtype=np.int64).reshape(-1)
        captured.states.fill(self.number, self.requests)
        first, *others = captured.fillings
        # Whatever lies there, a write of another step's contents shows.
        taken = np.concatenate([drafts, *(slots for _, slots in prefixes)])
        first.fill(self.number, prefixes, np.concatenate([drafts, captured.slots_but(taken)]))
        for filling in others:
            filling.fill(self.number, prefixes, drafts[:0])
        if self.requests and self.family.drafts and BACKEND_FACTS[self.setup.backend].reads_pages:
            pairs = [(r, *page_copies(self.setup, r.seq_len)) for r in self.requests]
            sources, copies = ([table[r.slot, pair[side]].reshape(-1) for r, *pair in pairs] for side in (0, 1))
            memory.copy_slots(captured.every_kv, np.concatenate(sources), np.concatenate(copies))
