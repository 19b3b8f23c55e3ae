"""The memory that a graph uses and did not allocate, at each launch: what of it sglang has let go of."""

from __future__ import annotations

import numpy as np

from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.sessions.captured import Captured
from runners.sessions.liveness import Liveness
from runners.sessions.observe.observer import Call, Observer


class GraphInputs(Observer):
    """Looks at the graph under way, if it is the emulated engine's. Right after capture it finds who holds what.
    Mutable: it remembers the names of a call, which may launch several graphs."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured)
        graphs = engine.recordings()
        self._liveness = Liveness(captured.owners, graphs) if graphs else None
        self._named: set[str] = set()

    def before(self, call: Call) -> None:
        self._named.clear()

    def launched(self, call: Call) -> None:
        graph = self.captured.launched
        if self._liveness is None or not isinstance(graph, engine.Graph):
            return
        if call.launches == 1:
            call.staging.see(Recorded.LIVENESS, "inputs", len(graph.inputs))
        for name, words in self._liveness.gone(graph):
            if name not in self._named:
                self._named.add(name)
                call.staging.see(Recorded.LIVENESS, name, np.frombuffer(words.encode(), dtype=np.uint8))
