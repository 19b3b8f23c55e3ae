"""One observation: four hooks, which each do nothing unless an observation needs them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from repro.cases.case import Request
from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.releases.live import RETURNED, Given, Outputs
from runners.sessions.captured import Captured


@dataclass(slots=True, kw_only=True)
class Call:
    """One pass of a step over its batch. Mutable: its launches are counted."""

    number: int  # of the step
    path: Recorded  # GRAPH, EAGER, or one of VARIANTS
    requests: tuple[Request, ...]
    batch: Any  # as sglang has it
    handed: Mapping[str, torch.Tensor]  # what the batch was made of
    given: Given  # the same on the host, one row a request
    hidden: str  # the hidden states that it asks for
    count: int  # how many rows the batch has: more than requests where it is padded
    whole: bool  # True for what takes as long as half a call: another history, reads, attributes
    alone: bool  # True of an eager pass that no graph stands beside
    staging: StagingBuffer
    watch: Watch
    during: ExitStack  # what is entered here is left when the pass has ended
    launches: int = 0

    @property
    def by_graph(self) -> bool:
        """True of a graph's pass over requests; an idle batch has none."""
        return self.path is Recorded.GRAPH and bool(self.requests)

    def asked(self, outputs: Outputs) -> Outputs:
        """The outputs without what the batch does not ask for."""
        return {name: tensor for name, tensor in outputs.items() if self.hidden or name != RETURNED}


class Observer:
    """Says what is to be seen, and leaves it to the step when that is copied and sent."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured

    def once(self, staging: StagingBuffer) -> None:
        """A case begins."""

    def before(self, call: Call) -> None:
        """A pass is about to begin."""

    def launched(self, call: Call) -> None:
        """A graph is about to be launched. What the device holds is copied before it is."""

    def after(self, call: Call, outputs: Outputs) -> None:
        """A pass has ended, with these outputs. What the device holds is copied before the next pass."""
