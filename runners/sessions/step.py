"""One call of a runner: the graph path, then the eager path from the same memory, and a record of both."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from repro.cases import case
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.layout import page_copies
from repro.traces.paths import Recorded
from repro.traces.trace import Array
from runners.engines.active import engine
from runners.engines.sending import sent
from runners.engines.staging import HostArrays, StagingBuffer
from runners.recording.observer import Refused, Watch
from runners.releases.backends.eager_metadata import eager_metadata
from runners.releases.live import RETURNED, Given, Outputs, Rows
from runners.sessions import memory, writes
from runners.sessions.answers import (
    KV_DIFFERS,
    apart,
    by_token,
    can_run,
    gave_the_same,
    rows_each,
    see_bands,
    see_memory,
)
from runners.sessions.beside import Beside
from runners.sessions.captured import Captured
from runners.sessions.errors import sglang_errors, unreadable
from runners.sessions.extents import see_logits, see_plan
from runners.sessions.referring import Kv, Left, ask

# Record KV contents and eager's noise even where both paths agree: what two engines are compared by.
WHOLE = os.environ.get("EAGLEEYE_RECORD") == "whole"
# How far inputs are moved to see whether an output hangs on rounding: a few units in the last place.
NUDGE = {torch.float32: 2.0**-21, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


class Step:
    """One call on a captured runner. referred: a third opinion is asked for whatever comes of it. twinned: the graph
    runs it in another history as well, if one is known. unseen: of eager's pass the next call finds KV rows alone."""

    def __init__(
        self,
        captured: Captured,
        number: int,
        asked: case.Step,
        watch: Watch,
        *,
        referred: bool = False,
        twinned: bool = False,
        unseen: bool = False,
    ) -> None:
        self.captured, self.number, self.watch, self.referred = captured, number, watch, referred
        self.setup, self.family = captured.setup, captured.adapter.family
        self.asked, self.requests, self.hidden = asked, asked.requests, captured.asks(asked.hidden, number, watch)
        self.mirrored = (asked.mirrored and self.setup.mirrored) or captured.planner.needs_host_lengths
        if captured.lay_out(asked.layout):
            watch.see(number, Recorded.INPUT, "req_to_token", captured.table)
        self.launches, self.tape = 0, StagingBuffer(watch, number, captured.known)
        self.beside = Beside(captured, number, self.tape, watch, whole=twinned, unseen=unseen)
        self.shown: dict[str, torch.Tensor] = {}  # the batch, one row a request
        self.given = self._given()
        self.rows = self._rows()

    def run(self) -> None:
        engine.memory_seen()  # what earlier calls and models did is not this call's
        try:
            self._run()
        finally:
            see_memory(self.tape)

    def _run(self) -> None:
        captured = self.captured
        self.fill()
        if not self.is_replayed():
            if self.requests:
                self._run_without_graph()
            return
        captured.snapshots.take(captured.snapshots.BEFORE)
        try:
            if self.requests:
                self._run_both()
            else:
                self._run_idle()
        except Refused:
            self.tape.see(Recorded.ASKED, "can_run", 0)  # though it was not asked, as a matter of course
            self.tape.flush()

    def _run_both(self) -> None:
        """By graph, then by eager in the same memory."""
        captured, snapshots = self.captured, self.captured.snapshots
        if self.beside.run_twin(self.batch_for_graph):
            snapshots.put_back(snapshots.BEFORE)
        forward_batch = self.batch_for_graph()
        self._see_caller(Recorded.BEFORE, forward_batch)
        self.tape.hold()
        self.watch.at(self.number, "graph")
        self.beside.begin(forward_batch)
        outputs = self._graph(forward_batch)
        by_graph = self._see_outputs(Recorded.GRAPH, outputs, len(self.requests))
        self.beside.end(outputs, len(self.requests))
        self._ask_bands()
        self._see_caller(Recorded.AFTER_GRAPH, forward_batch)
        self.tape.hold()
        snapshots.take(snapshots.GRAPH)
        snapshots.put_back(snapshots.BEFORE)
        forward_batch, by_eager = self._eager(Recorded.EAGER, self.rows, after="graph")
        self._see_caller(Recorded.AFTER_EAGER, forward_batch)
        snapshots.take(snapshots.EAGER)
        graph_slots, eager_slots, between = snapshots.compare()
        self.tape.see(Recorded.GRAPH, "kv_slots", graph_slots, as_slots=True)
        self.tape.see(Recorded.EAGER, "kv_slots", eager_slots, as_slots=True)
        self.tape.see(Recorded.EAGER, KV_DIFFERS, between, as_slots=True, tell=False)
        came = self._all_came("eager")
        see_bands(self.tape, captured.bands, came)
        if by_graph == by_eager and gave_the_same(came, by_graph) and not WHOLE:
            self.tape.see(Recorded.EAGER, "kv_same", 1)
            asks = self.referred
        else:
            self._see_rows(Recorded.GRAPH, came, snapshots.kept(snapshots.GRAPH))
            self._see_rows(Recorded.EAGER, came, captured.kv)
            self.tape.flush()
            variants = self._measure_noise(snapshots.kept(snapshots.BEFORE), by_eager)
            asks = self.referred or (by_graph == by_eager and apart(captured, came, by_eager, variants))
        self.tape.hold()
        if asks and by_graph == by_eager:
            kept = {Recorded.EAGER: snapshots.kept(snapshots.EAGER), Recorded.GRAPH: snapshots.kept(snapshots.GRAPH)}
            self._ask_reference(came, by_eager, kept)
        self.beside.end_eager()

    def _run_idle(self) -> None:
        """The graph goes over padding alone, and there is nothing for eager."""
        forward_batch = self.batch_for_graph()
        self._see_caller(Recorded.BEFORE, forward_batch)
        self.tape.hold()
        self.watch.at(self.number, "graph")
        self._graph(forward_batch)
        self._ask_bands()
        self._see_caller(Recorded.AFTER_GRAPH, forward_batch)
        self._see_slots(Recorded.GRAPH, self.captured.snapshots.kept(self.captured.snapshots.BEFORE))
        see_bands(self.tape, self.captured.bands, self._all_came("graph"))

    def is_replayed(self) -> bool:
        """Whether a graph runs this batch. The runner is asked where that is more than a matter of course."""
        held = self.setup.replays(self.asked.busiest, self.hidden)
        if held and self.setup.padded and not self.hidden:
            return True
        self.watch.at(self.number, "asked")
        with self.captured.timed("graph", self.watch):
            taken = can_run(self.captured.runner, self.batch_for_graph())
        self.tape.see(Recorded.ASKED, "can_run", int(taken))
        self.tape.flush()
        return held and taken

    def _run_without_graph(self) -> None:
        """Eager goes on alone, with the same memory."""
        captured, snapshots = self.captured, self.captured.snapshots
        snapshots.take(snapshots.BEFORE)
        with captured.history.reading(self.tape, self.setup.page_size) if captured.history else nullcontext():
            _, names = self._eager(Recorded.EAGER, self.rows)
        for name, tensor in eager_metadata(self.setup, captured.planner.first).items():
            self.tape.see(Recorded.METADATA, name, tensor)
        self._see_slots(Recorded.EAGER, snapshots.kept(snapshots.BEFORE))
        came = self._all_came("eager")
        self._see_rows(Recorded.EAGER, came, captured.kv)
        self.tape.flush()
        if WHOLE:
            self._measure_noise(snapshots.kept(snapshots.BEFORE), names)
        self.tape.hold()
        if self.referred:
            self._ask_reference(came, names, {Recorded.EAGER: captured.kv})

    def batch(self, rows: Rows) -> Any:
        rows = rows.copied()
        self.beside.handed = rows.tensors
        with sglang_errors(wait=False):
            batch = self.captured.adapter.batch(self.captured.live, rows)
        if not self.requests:
            batch.forward_mode = type(batch.forward_mode).IDLE
        if self.hidden:
            batch.capture_hidden_mode = type(batch.capture_hidden_mode)[self.hidden.upper()]
        if not self.mirrored:
            batch.seq_lens_cpu = batch.seq_lens_sum = None
        return batch

    def batch_for_graph(self) -> Any:
        batch = self.batch(self.rows)
        self.captured.tell_ranks(batch, self.asked)
        return batch

    def fill(self) -> None:
        """Have memory and batch as the call finds them."""
        self._fill_cache()
        self._prepare()

    def _graph(self, forward_batch: Any) -> Outputs:
        def launched() -> None:
            start = time.perf_counter()
            if noting is not None:
                noting.listening = False
            try:
                self._see_launch()
                self.beside.launched()
                self.tape.flush()
            except torch.AcceleratorError:
                raise
            except Exception as error:
                raise unreadable(error, "the launch could not be recorded") from error
            self.watch.at(self.number, "replay")
            self.watch.spent("graph", start - time.perf_counter())  # recording is no part of the path

        captured = self.captured
        with (
            writes.noted(captured.buffers, self.number, self.watch) if writes.ASKED else nullcontext() as noting,
            captured.planner.listened(partial(self._see_plan, Recorded.PLANNED)),
            captured.launching(launched),
            self.beside.watching(),
            captured.timed("graph", self.watch),
        ):
            outputs = captured.adapter.graph(captured.runner, forward_batch)
        if self.launches and self.family.metadata_after(self.setup):
            self._see_metadata()
        return outputs

    def _eager(self, path: Recorded, rows: Rows, after: str = "") -> tuple[Any, list[str]]:
        """An eager pass; it leaves its KV cache behind. The batch, as the pass left it, and the names of its outputs.
        after: the stage before, if its errors are still to surface: before this path is begun."""
        captured, forward_batch = self.captured, self.batch(rows)
        if after:
            captured.wait_for(after, self.watch)
        self.watch.at(self.number, path)
        planner, see = captured.planner, partial(self._see_plan, Recorded.PLANNED_EAGER)
        with planner.listened(see) if path == Recorded.EAGER else nullcontext(), captured.timed("eager", self.watch):
            outputs = captured.adapter.eager(captured.live, forward_batch)
        return forward_batch, self._see_outputs(path, outputs, rows.count)

    def _all_came(self, stage: str) -> HostArrays:
        return self.tape.flush(partial(self.captured.wait_for, stage, self.watch))

    def _measure_noise(self, before: list[torch.Tensor], names: list[str]) -> list[dict[str, Array]]:
        """Graph and eager differ: measure how far eager differs from itself, then put its first result back. What it
        gave each time under these names."""
        captured, noisy, again = self.captured, self.family.noisy, self.rows
        saved, nudge = memory.copied(captured.kv), NUDGE[captured.dtype]
        variants: list[dict[str, Array]] = []
        if self.asked.busiest <= self.setup.max_bs and self.family.eager_pads(self.setup):
            again = again.padded(self.setup.bucket(self.asked.busiest), captured.neutral)
        for path, rows, factor in (
            (Recorded.EAGER_AGAIN, again, 1.0),
            (Recorded.EAGER_NUDGED_UP, self.rows.nudged(noisy, 1 + nudge), 1 + nudge),
            (Recorded.EAGER_NUDGED_DOWN, self.rows.nudged(noisy, 1 - nudge), 1 - nudge),
        ):
            start = before if noisy else memory.scaled(before, factor)
            memory.restore(captured.kv, start)
            with nullcontext() if noisy else captured.embeddings_moved(factor):
                self._eager(path, rows)
            self._see_slots(path, start)
            came = self._all_came("eager")
            self._see_rows(path, came, captured.kv)
            variants.append({name: came[path, name] for name in names})
        self.tape.flush()
        memory.restore(captured.kv, saved)
        return variants

    def _ask_reference(self, came: HostArrays, names: list[str], left: Mapping[Recorded, Kv]) -> None:
        """Record what the call should have given. names: of its outputs. left: the KV cache as each path left it."""
        self.watch.at(self.number, "reference")
        start = time.perf_counter()
        outputs = {path: {name: came[path, name] for name in names} for path in left}
        ask(self.captured, self.requests, self.shown, Left(outputs=outputs, kv=left), self.tape, self.watch)
        self.watch.spent("reference", time.perf_counter() - start)

    # Inputs ------------------------------------------------------------------------------------------------------

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
            self.tape.see(Recorded.INPUT, name, value, rows=len(self.requests))
            self.shown[name] = torch.as_tensor(value)
            put[name] = value.reshape(-1) if name in self.family.flat else value
        return Rows.put(len(self.requests), put, self.captured.device)

    def _prepare(self) -> None:
        """Add to the batch what other models make of it."""
        captured = self.captured
        if captured.adapter.prepare is None or not self.requests:
            return
        self.tape.hold()
        self.watch.at(self.number, "prepare")
        with captured.timed("eager", self.watch):
            prepared = captured.adapter.prepare(captured.live, self.rows.copied())
        captured.wait_for("eager", self.watch)
        for name, tensor in prepared.items():
            self.tape.see(Recorded.INPUT, name, tensor, rows=len(self.requests))
            self.shown[name] = tensor.view(len(self.requests), tensor.numel() // len(self.requests))
        self.rows = self.rows.joined(prepared)

    def _fill_cache(self) -> None:
        captured, table = self.captured, self.captured.table
        prefixes = [(r, table[r.slot, : self.family.prefix(self.setup, r)]) for r in self.requests]
        drafts = np.asarray(self.given.get("out_cache_loc", np.empty(0)), dtype=np.int64).reshape(-1)
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

    # Recording ---------------------------------------------------------------------------------------------------
    def _see_caller(self, path: Recorded, batch: Any) -> None:
        for name, value in self.family.caller(batch).items():
            self.tape.see(path, name, value)

    def _see_launch(self) -> None:
        """Of the first launch of a call; a runner of several graphs launches more."""
        self.launches += 1
        if self.launches > 1:
            return
        captured = self.captured
        bs, raw_bs = self.family.sizes(captured.runner)
        self.tape.see(Recorded.LAUNCH, "bs", bs)
        self.tape.see(Recorded.LAUNCH, "raw_bs", raw_bs)
        for name, tensor in captured.gathered().items():
            self.tape.see(Recorded.GATHERED, name, tensor)
        launched = self.family.launched
        for name, tensor in (launched(captured.runner) if launched else captured.buffers).items():
            self.tape.see(Recorded.LAUNCH, name, by_token(name, tensor), rows=bs if launched else self.setup.max_bs)
        if not self.family.metadata_after(self.setup):
            self._see_metadata()

    def _see_metadata(self) -> None:
        """What attention reads in this call."""
        live, runner = self.captured.live, self.captured.runner
        for name, tensor in self.family.metadata(live, runner, self.family.sizes(runner)[0], self.given).items():
            self.tape.see(Recorded.METADATA, name, tensor)

    def _see_plan(self, path: Recorded, call: int, batch: Mapping[str, object], given: Mapping[str, Any]) -> None:
        """What a call that plans is given, as it is at that moment. A runner of several graphs plans more than once."""
        numbered = f".{call}" if call else ""
        for name, value in batch.items():
            self.tape.see(path + numbered, name, value)
        see_plan(self.tape, path, numbered, given)
        self.tape.hold()

    def _see_outputs(self, path: Recorded, outputs: Outputs, count: int) -> list[str]:
        """The rows of real requests, of a pass over `count` requests: one over a padded batch gives more. Their
        names."""
        real = len(self.requests)
        if not self.hidden:
            outputs = {name: tensor for name, tensor in outputs.items() if name != RETURNED}
        for name, tensor in outputs.items():
            each = rows_each(name, tensor, count)
            see_logits(self.tape, self.setup, path, name, each)
            real_rows = tensor if tensor.shape[0] == each * real else tensor[: each * real]
            self.tape.see(path, name, real_rows, rows=real if each > 1 else 0)
        return sorted(outputs)

    def _see_slots(self, path: Recorded, before: list[torch.Tensor]) -> None:
        changed = memory.changed_slots(self.captured.kv, before)
        self.tape.see(path, "kv_slots", changed, as_slots=True)

    def _see_rows(self, path: Recorded, came: HostArrays, kv: list[torch.Tensor]) -> None:
        """Have what lies in the changed KV slots recorded, at the next flush."""
        slots = sent(torch.tensor(came[path, "kv_slots"]), self.captured.device)
        self.tape.see(path, "kv_rows", memory.contents(kv, slots))

    def _ask_bands(self) -> None:
        for number, bands in enumerate(self.captured.bands):
            self.tape.see(Recorded.GUARD, str(number), bands.read(), tell=False)
