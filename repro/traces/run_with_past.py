"""A run of a case and what its process had run before it: a failure may be of that, too."""

from __future__ import annotations

from dataclasses import dataclass

from repro.cases.case import Case, Setup
from repro.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWithPast:
    """past: setups that the process had served before the case's; history: the latest cases that its session had run
    before it."""

    case: Case
    trace: Trace
    past: tuple[Setup, ...] = ()
    history: tuple[Case, ...] = ()
