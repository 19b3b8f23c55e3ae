"""The passes of a step over its batch, by graph and eagerly, and what observers see of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch

from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.sending import sent
from runners.engines.staging import HostArrays
from runners.releases.live import Outputs, Rows
from runners.sessions import memory, writes
from runners.sessions.errors import unreadable
from runners.sessions.history import Launched
from runners.sessions.inputs import Inputs
from runners.sessions.observe.observer import Call, Observer


class Passes:
    """All passes of one step. whole: observers see what takes as long as half a call, too. paths: what is accepted of
    each request's tree, once a call has been made whose recurrent states are committed."""

    def __init__(self, inputs: Inputs, observers: Sequence[Observer], *, whole: bool) -> None:
        self.inputs, self.observers, self.whole = inputs, observers, whole
        self.captured, self.staging, self.watch = inputs.captured, inputs.staging, inputs.watch
        self.paths: list[list[tuple[int, int]]] = []

    def run_twin(self) -> bool:
        """Run the call in another history, where one is known and the call is seen whole; True if it was run."""
        captured = self.captured
        if captured.history is None or not self.whole:
            return False

        def run(launched: Launched) -> Outputs:
            with captured.launching(launched), captured.timed("history", self.watch):
                return captured.adapter.graph(captured.runner, self.inputs.batch_for_graph())

        self.watch.at(self.inputs.number, "graph")
        captured.history.run_twin(run)
        return True

    def run_graph(self) -> list[str]:
        """The graph's pass, and the names of its outputs."""
        captured, rows = self.captured, self.inputs.rows.copied()
        with ExitStack() as during:
            call = self._call(Recorded.GRAPH, rows, self.inputs.batch_for_graph(rows), during)
            for observer in self.observers:
                observer.before(call)
            self.staging.hold()
            self.watch.at(call.number, "graph")
            noting = writes.noted(captured.buffers, call.number, self.watch) if writes.ASKED else nullcontext()
            listening = during.enter_context(noting)
            during.enter_context(captured.launching(partial(self._launched, call, listening)))
            with captured.timed("graph", self.watch):
                outputs = captured.adapter.graph(captured.runner, call.batch)
        return self._ended(call, outputs)

    def _commit(self, call: Call) -> None:
        """Commit the recurrent states of the tokens that are accepted, as a worker does behind the call."""
        captured, requests = self.captured, self.inputs.requests
        accepted, commit = captured.adapter.accepted, captured.adapter.commit
        if not (requests and captured.states.rows and accepted and commit):
            return
        self.staging.hold()
        self.watch.at(call.number, f"commit behind {call.path}")
        with captured.timed("eager", self.watch):
            self.paths = accepted(call.batch, requests)
            tracked = sent(torch.from_numpy(captured.states.tracked_of(requests)), captured.device)
            commit(captured.live, call.batch, self.paths, tracked)

    def run_eager(self, path: Recorded, rows: Rows, *, after: str = "", alone: bool = False) -> list[str]:
        """An eager pass, and the names of its outputs; it leaves its KV cache behind. after: the stage before, if its
        errors are still to surface: before this path is begun. alone: no graph stands beside it."""
        captured, rows = self.captured, rows.copied()
        batch = self.inputs.batch(rows)
        if after:
            captured.wait_for(after, self.watch)
        self.watch.at(self.inputs.number, path)
        with ExitStack() as during:
            call = self._call(path, rows, batch, during, alone=alone)
            for observer in self.observers:
                observer.before(call)
            with captured.timed("eager", self.watch):
                outputs = captured.adapter.eager(captured.live, batch)
        return self._ended(call, outputs)

    def run_idle(self, batch: Any) -> None:
        """The eager pass of a rank without requests, whose batch MLP synchronisation pads. Observers have no row of it
        to look at."""
        captured = self.captured
        self.watch.at(self.inputs.number, Recorded.EAGER)
        with captured.timed("eager", self.watch), engine.hosted(), captured.unreplayed_rank():
            captured.adapter.eager(captured.live, batch)

    def came(self, stage: str) -> HostArrays:
        """Bring what was seen to the host. stage: what the device is waited for."""
        return self.staging.flush(partial(self.captured.wait_for, stage, self.watch))

    def see_slots(self, path: Recorded, before: list[torch.Tensor]) -> None:
        changed = memory.changed_slots(self.captured.kv, before)
        self.staging.see(path, "kv_slots", changed, as_slots=True)

    def see_rows(self, path: Recorded, came: HostArrays, kv: list[torch.Tensor]) -> None:
        """Have what lies in the changed KV slots recorded, at the next flush."""
        slots = sent(torch.tensor(came[path, "kv_slots"]), self.captured.device)
        self.staging.see(path, "kv_rows", memory.contents(kv, slots))

    def _call(self, path: Recorded, rows: Rows, batch: Any, during: ExitStack, *, alone: bool = False) -> Call:
        return Call(
            number=self.inputs.number,
            path=path,
            requests=self.inputs.requests,
            batch=batch,
            handed=rows.tensors,
            given=self.inputs.given,
            hidden=self.inputs.hidden,
            count=rows.count,
            whole=self.whole,
            alone=alone,
            staging=self.staging,
            watch=self.watch,
            during=during,
        )

    def _launched(self, call: Call, noting: Any) -> None:
        start = time.perf_counter()
        if noting is not None:
            noting.listening = False
        call.launches += 1
        try:
            for observer in self.observers:
                observer.launched(call)
            self.staging.flush()
        except torch.AcceleratorError:
            raise
        except Exception as error:
            raise unreadable(error, "the launch could not be recorded") from error
        self.watch.at(call.number, "replay")
        self.watch.spent("graph", start - time.perf_counter())  # recording is no part of the path

    def _ended(self, call: Call, outputs: Outputs) -> list[str]:
        for observer in self.observers:
            observer.after(call, outputs)
        self._commit(call)
        return sorted(call.asked(outputs))
