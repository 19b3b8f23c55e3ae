"""What is seen of a graph's call besides its batch and its results: buffers that no family names, what it reads, how it
depends on what ran before it, and what of its runner and workers it leaves changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from repro.cases.exemptions import exempted
from repro.traces.paths import Recorded
from repro.traces.trace import NOTHING, STALE
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.releases.catalogue import present_release
from runners.releases.live import Outputs
from runners.sessions import attributes
from runners.sessions.answers import captured_for
from runners.sessions.captured import Captured
from runners.sessions.history import Launched
from runners.sessions.state import Moment


class Beside:
    """Of one call. whole: with another history, reads and attributes, which take as long as half a call. unseen: the
    next call finds nothing of eager's pass, as in step.py."""

    def __init__(
        self, captured: Captured, number: int, tape: StagingBuffer, watch: Watch, *, whole: bool, unseen: bool
    ) -> None:
        self.captured, self.number, self.tape, self.watch = captured, number, tape, watch
        self.history = captured.history if whole else None
        self.fields: dict[str, tuple[slice, ...]] = {}  # of further buffers, the part that the batch fills
        self.remembered: dict[str, str] = {}
        self.whole, self.unseen = whole, unseen
        self.handed: Mapping[str, torch.Tensor] = {}  # to the call that was begun last
        self.behind_graph: Moment | None = None

    def run_twin(self, batch: Callable[[], Any]) -> bool:
        """Run the call in another history, if that is asked for. batch: makes what it is called with."""
        captured = self.captured
        if self.history is None:
            return False

        def run(launched: Launched) -> Outputs:
            with captured.launching(launched), captured.timed("history", self.watch):
                return captured.adapter.graph(captured.runner, batch())

        self.watch.at(self.number, "graph")
        self.history.run_twin(run)
        return True

    def begin(self, batch: Any) -> None:
        """The call itself is about to begin, with this batch."""
        self._see_fields(batch)
        if self.history:
            self.remembered = attributes.attributes(self.captured.owners)

    def watching(self) -> AbstractContextManager[None]:
        """To be entered while the call runs."""
        return self.history.watching() if self.history else nullcontext()

    def launched(self) -> None:
        """A graph is launched."""
        for name, value in captured_for(self.captured.runner, self.captured.launched).items():
            self.tape.see(Recorded.LAUNCHED, name, value)
        for name, part in self.fields.items():
            self.tape.see(Recorded.STAGED, name, self.captured.further[name][part])
        self.fields = {}
        if self.history:
            self.history.launched(self.tape)

    def end(self, outputs: Outputs, real: int) -> None:
        """The call has ended, with these outputs for its real requests."""
        lifetime = self.captured.lifetime
        if self.whole:
            lifetime.see(self.tape)
        else:
            lifetime.hold(self.number, self.handed, outputs)
        self.behind_graph = self.captured.state.take() if self.unseen else None
        if self.history is None:
            return
        stale = self.history.end(self.tape, outputs, real, self.captured.setup.page_size)
        self.watch.fact(STALE, stale or NOTHING)
        now = attributes.attributes(self.captured.owners)
        self.tape.see(Recorded.ATTRIBUTES, "compared", len(self.remembered))
        # A pool that an earlier call kept is no change of this one: backends are held to what they were built with.
        lent = attributes.moved(self.captured.backends, self.captured.pools)
        for name, words in (attributes.changed(self.remembered, now) | lent).items():
            self.tape.see(Recorded.ATTRIBUTES, name, np.frombuffer(words, dtype=np.uint8))

    def end_eager(self) -> None:
        """What followed the call has ended."""
        if self.behind_graph:
            self.behind_graph.put_back()

    def _see_fields(self, batch: Any) -> None:
        """What the batch says of buffers that the family does not name; and which of them nobody watches."""
        if not self.captured.further:
            return
        unwatched = []
        setup, release = self.captured.setup, present_release()
        otherwise_filled = exempted("staged", setup, release)
        optional = exempted("unwatched", setup, release)
        for name, buffer in self.captured.further.items():
            found = (getattr(owner, name, None) for owner in (batch, getattr(batch, "spec_info", None)))
            field = next((value for value in found if isinstance(value, torch.Tensor)), None)
            if name in otherwise_filled:
                continue
            if field is not None and field.dim() == buffer.dim():
                self.fields[name] = tuple(slice(size) for size in field.shape)
                self.tape.see(Recorded.FIELD, name, field.clone())
            elif name not in optional:
                unwatched.append(name)
        if unwatched:
            self.watch.fact("unwatched", ", ".join(sorted(unwatched)))
