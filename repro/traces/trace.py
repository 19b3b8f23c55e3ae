"""The record of a case that was run: how it ended, and every array that was seen on the way.

Oracles judge from this record alone. An array is named by (step, path, name); paths are the rows of
repro/traces/paths.py. Row-shaped arrays have one row per request; where a row is one value wide, they are flat.

Before each step the caller writes the prefixes of its requests into the KV cache; the rest of it goes on from the
eager path of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from repro.traces.paths import Recorded

Array = npt.NDArray[np.generic]

# The fact that names what an earlier batch left in a tensor and no kernel of the call reads, and what it says of a call
# where there is none.
STALE, NOTHING = "stale, no reader known", "nothing"
# The fact that has the way of a run through sglang (repro/suspects/way.py), where writes are noted.
PASSED = "passed"


class Termination(StrEnum):
    """The ways in which a run ends. Neither of the last two is sglang's bug, and neither was a run of the case.

    UNSUPPORTED: declared before it was tried, with the release's reason or a stand-in's. ERROR: the harness, an adapter
    or the environment failed, which is never passed over in silence.
    """

    DONE = "done"
    RAISED = "raised"
    CRASHED = "crashed"
    HUNG = "hung"
    UNSUPPORTED = "unsupported"
    ERROR = "error"

    @property
    def took_place(self) -> bool:
        """True if the case was run at all."""
        return self not in (Termination.UNSUPPORTED, Termination.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """step: the step that was under way (-1: building or capturing), path: which path of it. what: a short
    coarse name that is the same for the same bug (an exception type, a CUDA error, a signal). detail: the full text."""

    how: Termination
    step: int = -1
    path: str = ""
    what: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArray:
    """One recorded array: a copy made at once, since runners return views that the next replay overwrites."""

    step: int
    path: str
    name: str
    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """facts: short texts about the run (release, adapter, engine, torch, machine); seconds: time per stage
    (build, graph, history, eager, reference, record)."""

    ended: End
    seen: tuple[RecordedArray, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def replayed(self) -> set[int]:
        """The steps whose graph path was recorded."""
        return {seen.step for seen in self.seen if seen.path == Recorded.GRAPH and seen.step >= 0}

    @property
    def replays(self) -> int:
        """The number of replays that were recorded: one a step whose graph path was, and those inside rounds."""
        return len(self.replayed) + len({seen.step for seen in self.seen if seen.path == Recorded.ROUND_LAUNCH})

    def get(self, step: int, path: str, name: str) -> Array | None:
        """The array of that name, or None if it was not recorded."""
        for seen in self.seen:
            if seen.step == step and seen.path == path and seen.name == name:
                return seen.array
        return None

    def path(self, step: int, path: str) -> dict[str, Array]:
        """All arrays of one path of one step, by name."""
        return {s.name: s.array for s in self.seen if s.step == step and s.path == path}

    def paths(self, step: int) -> set[str]:
        """The paths of which something was recorded in this step."""
        return {s.path for s in self.seen if s.step == step}
