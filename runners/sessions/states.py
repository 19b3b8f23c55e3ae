"""The recurrent states of a session, beside its KV cache: what lies in them before a step, and what each path leaves.

Where no layer is recurrent there are none, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.families import changes_states
from repro.cases.layout import Ints, is_kept, state_slots, track_interval, tracked_slots
from repro.traces.paths import Recorded
from runners.engines.sending import sent
from runners.engines.staging import StagingBuffer
from runners.recording.observer import HarnessError
from runners.releases.options import recurrent
from runners.sessions import memory

# Prefixes: of the kinds of states that graph and eager left with other bits, and of kept states.
DIFFER, TRACKED = "differ.", "tracked "
Path = Sequence[tuple[int, int]]  # down a tree, its tokens' numbers there and what they are


class States:
    """States by kind, each in as many slots as the others, and which slot each request slot has. Mutable: slots move
    from layout to layout."""

    def __init__(self, model_runner: Any, setup: Setup) -> None:
        self.setup = setup
        self.kinds = recurrent.of_kinds(model_runner)
        self.of_drafts = recurrent.of_drafts(model_runner)
        self.rows = [layer for layers in self.kinds.values() for layer in layers]
        self.snapshots = {kind: memory.Snapshots(layers) for kind, layers in self.kinds.items()}
        self._mapping = recurrent.slots_of_requests(model_runner) if self.rows else None
        self._kept = recurrent.kept_in(model_runner) if self.rows else None
        self._filling: memory.Filling | None = None
        self.lay_out(0)

    def filled_from(self, values: torch.Tensor) -> None:
        """Have states filled from these values, as KV caches are."""
        if self.rows:
            self._filling = memory.Filling(self.rows, values)

    def lay_out(self, layout: int) -> None:
        """Have request slots own state slots by this layout."""
        self.slots, self.tracked = state_slots(self.setup, layout), tracked_slots(self.setup, layout)
        if self._mapping is None:
            return
        needed = max(self.slots.max(), self.tracked.max()) + 1
        if needed > len(self.rows[0]):
            raise HarnessError(f"there are {len(self.rows[0])} state slots, the layout needs {needed}")
        self._mapping[: len(self.slots)] = torch.from_numpy(self.slots).to(self._mapping)
        if self._kept is not None:
            self._kept[: len(self.tracked)] = torch.from_numpy(self.tracked).to(self._kept)[:, None]

    def fill(self, step: int, requests: Sequence[Request]) -> None:
        """Put each request's state into its slot, from its `data`, into others what differs from step to step, and
        into the room for drafts' states no numbers."""
        if self._filling is None:
            return
        owned = self._owned(requests)
        others = np.setdiff1d(np.arange(len(self.rows[0])), owned)
        self._filling.fill(step, [(r, owned[row : row + 1]) for row, r in enumerate(requests)], others)
        for tensor in self.of_drafts.values():
            tensor.fill_(torch.nan)

    def static(self) -> dict[str, torch.Tensor]:
        """All that outlives a call, by name."""
        rows = {f"{kind}_states.{n}": layer for kind, layers in self.kinds.items() for n, layer in enumerate(layers)}
        mappings = {"state_slots": self._mapping, "kept_slots": self._kept}
        mapped = {name: mapping for name, mapping in mappings.items() if mapping is not None}
        return {**rows, **self.of_drafts, **mapped}

    def see_slots(
        self, staging: StagingBuffer, paths: Sequence[Recorded], requests: Sequence[Request], accepted: Sequence[Path]
    ) -> None:
        """Record the state slots that are the batch's, those that keep a state included, and those that the paths had
        changed when their snapshots were taken. accepted: what was committed of each request's tree."""
        if not self.rows:
            return
        owned = self._owned(requests if changes_states(self.setup) else ())
        kept = [request for request, path in zip(requests, accepted, strict=False) if self.keeps(request, len(path))]
        decoded = [] if self._kept is None else [r for r in requests if is_kept(self.setup, r.seq_len)]
        staging.see(Recorded.STATE_SLOTS, "owned", np.concatenate([owned, self.tracked_of(kept + decoded)]))
        for kind, snapshots in self.snapshots.items():
            by_graph, by_eager, between = snapshots.compare()
            for path, changed in ((Recorded.GRAPH, by_graph), (Recorded.EAGER, by_eager)):
                if path in paths:
                    staging.see(Recorded.STATE_SLOTS, f"{path}.{kind}", changed, as_slots=True)
            if len(paths) > 1:
                staging.see(Recorded.STATE_SLOTS, f"{DIFFER}{kind}", between, as_slots=True, tell=False)

    def see_values(
        self, staging: StagingBuffer, path: str, requests: Sequence[Request], moment: int | None = None, *, kept: bool
    ) -> None:
        """Record the requests' states, as they are or as they were at this moment. kept: those kept behind a commit,
        too; those that are kept while decoding in any case."""
        kept = kept or self._kept is not None
        slots = {"": self._owned(requests), **({TRACKED: self.tracked_of(requests)} if kept else {})}
        for kind, snapshots in self.snapshots.items():
            rows = self.kinds[kind] if moment is None else snapshots.kept(moment)
            for name, those in slots.items():
                there = sent(torch.from_numpy(those), self.rows[0].device)
                staging.see(Recorded.STATE_VALUES, f"{path}.{name}{kind}", memory.contents(rows, there).float())

    def keeps(self, request: Request, tokens: int) -> bool:
        """True if a state is kept of this request when so many tokens follow its prefix."""
        interval = track_interval(self.setup)
        return request.seq_len // interval != (request.seq_len + tokens) // interval

    def keep(self, requests: Sequence[Request]) -> None:
        """Keep these requests' states as they are."""
        of, into = (
            sent(torch.from_numpy(s), self.rows[0].device) for s in (self._owned(requests), self.tracked_of(requests))
        )
        for layer in self.rows:
            layer[into] = layer[of]

    def tracked_of(self, requests: Sequence[Request]) -> Ints:
        """The slots in which states of these requests are kept."""
        return self.tracked[[request.slot for request in requests]] if requests else self.tracked[:0]

    def _owned(self, requests: Sequence[Request]) -> Ints:
        return self.slots[[request.slot for request in requests]] if requests else self.slots[:0]
