"""One call of a runner: the graph path, then the eager path from the same memory, and a record of both."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from repro.cases import case
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import HostArrays
from runners.recording.observer import Refused, Watch
from runners.releases.catalogue import present_release
from runners.sessions import noise, sequential
from runners.sessions.captured import Captured
from runners.sessions.inputs import Inputs
from runners.sessions.observe.guard import see_bands
from runners.sessions.observe.memory import see_memory
from runners.sessions.observe.observer import Observer
from runners.sessions.passes import Passes
from runners.sessions.referring import Kv, Left, ask

# Record KV contents and eager's noise even where both paths agree: what two engines are compared by.
WHOLE = os.environ.get("EAGLEEYE_RECORD") == "whole"


class Step:
    """One call on a captured runner. referred: a third opinion is asked for whatever comes of it. twinned: the graph
    runs it in another history as well, if one is known. unseen: of eager's pass the next call finds KV rows alone."""

    def __init__(
        self,
        captured: Captured,
        observers: Sequence[Observer],
        number: int,
        step: case.Step,
        watch: Watch,
        *,
        referred: bool = False,
        twinned: bool = False,
        unseen: bool = False,
    ) -> None:
        self.captured, self.asked, self.referred, self.unseen = captured, step, referred, unseen
        self.inputs = Inputs(captured, number, step, watch)
        self.passes = Passes(self.inputs, observers, whole=twinned)
        self.number, self.watch, self.staging = number, watch, self.inputs.staging

    def run(self) -> None:
        engine.memory_seen()  # what earlier calls and models did is not this call's
        try:
            self._run()
        finally:
            see_memory(self.staging)

    def is_replayed(self) -> bool:
        """True if a graph runs this batch. The runner is asked unless its answer is certain."""
        setup, hidden = self.captured.setup, self.inputs.hidden
        in_bucket = setup.replays(self.asked.busiest, hidden)
        if in_bucket and setup.padded and not hidden:
            return True
        self.watch.at(self.number, "asked")
        with self.captured.timed("graph", self.watch):
            taken = _can_run(self.captured.runner, self.inputs.batch_for_graph())
        self.staging.see(Recorded.ASKED, "can_run", int(taken))
        self.staging.flush()
        return in_bucket and taken

    def _run(self) -> None:
        snapshots = self.captured.snapshots
        self.inputs.fill()
        if not self.is_replayed():
            if self.asked.requests:
                self._run_without_graph()
            else:
                self._run_idle_without_graph()
            return
        snapshots.take(snapshots.BEFORE)
        try:
            if self.asked.requests:
                self._run_both()
            else:
                self._run_idle()
        except Refused:
            self.staging.see(Recorded.ASKED, "can_run", 0)  # though it was not asked
            self.staging.flush()

    def _run_both(self) -> None:
        """Run the graph, then eager in the same memory."""
        captured, snapshots, passes = self.captured, self.captured.snapshots, self.passes
        if passes.run_twin():
            snapshots.put_back(snapshots.BEFORE)
        by_graph = passes.run_graph()
        behind_graph = captured.state.take() if self.unseen else None
        self.staging.hold()
        snapshots.take(snapshots.GRAPH)
        snapshots.put_back(snapshots.BEFORE)
        by_eager = passes.run_eager(Recorded.EAGER, self.inputs.rows, after="graph")
        snapshots.take(snapshots.EAGER)
        graph_slots, eager_slots, between = snapshots.compare()
        self.staging.see(Recorded.GRAPH, "kv_slots", graph_slots, as_slots=True)
        self.staging.see(Recorded.EAGER, "kv_slots", eager_slots, as_slots=True)
        self.staging.see(Recorded.EAGER, noise.KV_DIFFERS, between, as_slots=True, tell=False)
        self._see_states({Recorded.GRAPH: snapshots.GRAPH, Recorded.EAGER: snapshots.EAGER})
        came = passes.came("eager")
        see_bands(self.staging, captured.bands, came)
        asks = self._compare(came, by_graph, by_eager)
        self.staging.hold()
        if self.passes.paths and (self.referred or self.passes.whole):
            sequential.see(self.passes)
        if asks and by_graph == by_eager:
            moments = {Recorded.EAGER: snapshots.EAGER, Recorded.GRAPH: snapshots.GRAPH}
            self._ask_reference(came, by_eager, {path: snapshots.kept(moment) for path, moment in moments.items()})
        if behind_graph:
            behind_graph.put_back()

    def _compare(self, came: HostArrays, by_graph: list[str], by_eager: list[str]) -> bool:
        """Record where both paths left the same KV cache, or what each left and how far noise carries. Whether a third
        opinion is asked for."""
        captured, snapshots = self.captured, self.captured.snapshots
        if by_graph == by_eager and noise.gave_the_same(came, by_graph) and not WHOLE:
            self.staging.see(Recorded.EAGER, "kv_same", 1)
            return self.referred
        self.passes.see_rows(Recorded.GRAPH, came, snapshots.kept(snapshots.GRAPH))
        self.passes.see_rows(Recorded.EAGER, came, captured.kv)
        self.staging.flush()
        variants = noise.measured(self.passes, by_eager)
        return self.referred or (by_graph == by_eager and noise.apart(captured, came, by_eager, variants))

    def _run_idle(self) -> None:
        """The graph goes over padding alone."""
        snapshots = self.captured.snapshots
        self.passes.run_graph()
        self.passes.see_slots(Recorded.GRAPH, snapshots.kept(snapshots.BEFORE))
        snapshots.take(snapshots.GRAPH)
        self._see_states({Recorded.GRAPH: snapshots.GRAPH})
        see_bands(self.staging, self.captured.bands, self.passes.came("graph"))
        snapshots.put_back(snapshots.BEFORE)
        self._run_idle_without_graph()

    def _run_idle_without_graph(self) -> None:
        """Beside a busy rank eager goes over padding as well; otherwise a rank without requests runs nothing."""
        captured, snapshots = self.captured, self.captured.snapshots
        since = RUNNER_FACTS[captured.setup.runner].idles_eagerly_since
        if not self.asked.elsewhere or not since or release_order(present_release()) < release_order(since):
            return
        snapshots.take(snapshots.BEFORE)
        batch = self.inputs.batch(self.inputs.rows.copied())
        captured.tell_ranks(batch, self.asked, replayed=False)
        self.passes.run_idle(batch)
        self.passes.see_slots(Recorded.EAGER, snapshots.kept(snapshots.BEFORE))
        self.passes.came("eager")

    def _run_without_graph(self) -> None:
        """Eager goes on alone, with the same memory."""
        captured, snapshots = self.captured, self.captured.snapshots
        snapshots.take(snapshots.BEFORE)
        names = self.passes.run_eager(Recorded.EAGER, self.inputs.rows, alone=True)
        self.passes.see_slots(Recorded.EAGER, snapshots.kept(snapshots.BEFORE))
        snapshots.take(snapshots.EAGER)
        self._see_states({Recorded.EAGER: snapshots.EAGER})
        came = self.passes.came("eager")
        self.passes.see_rows(Recorded.EAGER, came, captured.kv)
        self.staging.flush()
        if WHOLE:
            noise.measured(self.passes, names)
        self.staging.hold()
        if self.referred:
            self._ask_reference(came, names, {Recorded.EAGER: captured.kv})

    def _see_states(self, moments: Mapping[Recorded, int]) -> None:
        """Record what these paths left in recurrent states. moments: of their snapshots."""
        states, requests, accepted = self.captured.states, self.asked.requests, self.passes.paths
        states.see_slots(self.staging, list(moments), requests, accepted)
        for path, moment in moments.items():
            states.see_values(self.staging, path, requests, moment, kept=bool(accepted))

    def _ask_reference(self, came: HostArrays, names: list[str], left: Mapping[Recorded, Kv]) -> None:
        """Record what the call should have given. names: of its outputs. left: the KV cache as each path left it."""
        self.watch.at(self.number, "reference")
        start = time.perf_counter()
        outputs = {path: {name: came[path, name] for name in names} for path in left}
        requests, shown = self.asked.requests, self.inputs.shown
        ask(self.captured, requests, shown, Left(outputs=outputs, kv=left), self.staging, self.watch)
        self.watch.spent("reference", time.perf_counter() - start)


def _can_run(runner: Any, forward_batch: Any) -> bool:
    """True if the runner would replay a graph for this batch."""
    can_run = getattr(runner, "can_run_graph", None) or runner.can_run
    return bool(can_run(forward_batch))
