"""The observer to which the code that runs a case reports, and the exception for failures of the harness."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from repro.cases.case import Case, Setup, Target
from repro.traces.trace import Array
from runners.recording.packed import PackedLayout


class Watch(Protocol):
    """The receiving end of a run. Everything is sent at once, so that a crash leaves what was seen before it.

    reference_steps: those in which the float64 reference is asked whatever comes of them; None: all of them."""

    reference_steps: Collection[int] | None = None

    def at(self, step: int, path: str) -> None:
        """Say which path of which step runs next (step -1: building or capturing)."""

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        """Record a copy of an array under a path of repro/traces/paths.py."""

    def see_all(self, step: int, what: PackedLayout, data: bytes) -> None:
        """The same for all that a layout says is recorded, out of these bytes."""
        for path, name, array in what.recorded(data):
            self.see(step, path, name, array)

    def spent(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage: build, graph, eager, record."""

    def fact(self, name: str, text: str) -> None:
        """Note a short text about the run: release, adapter, engine, versions."""


# Functions of the harness that are only on the way from sglang to torch, from a kernel to Triton's language, or from a
# scheduler to its worker: what is raised below them, or by a call that does not fit, is not theirs.
PASSING = ("__torch_function__", "__torch_dispatch__", "bound", "generate")

RunCase = Callable[[Case, Watch], None]
OpenSession = Callable[[Setup, Target, Watch], RunCase]


class Unsupported(Exception):
    """This case cannot be run here, which was known before it was tried. The text is the reason of the release, or of
    the stand-in."""


class Refused(Exception):
    """The captured runner answered that it has no graph for this batch. An oracle judges whether it should have one."""


class HarnessError(Exception):
    """The harness, an adapter or the environment failed: not a bug of sglang."""
