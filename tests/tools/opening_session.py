"""Ordinary sessions that also say where the seconds of their opening and of each case go, as stages of the trace."""

from __future__ import annotations

from repro.cases.case import Case, Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.releases.live import Adapter
from runners.sessions import open as plain
from tests.tools import opening_parts
from tests.tools.parts import Parts

changed, close_session = plain.changed, plain.close_session
# What the names of stages begin with.
OPENING, CASE = "opening: ", "case: "

_parts: list[Parts] = []  # of this process, once it has opened a session


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Open a session as runners/sessions/open.py does."""
    parts = _of_this_process()
    parts.taken()  # what has passed since the last case: this process had nothing to do, or closed the setup before
    run = plain.open_session(setup, target, watch)
    _tell(OPENING, parts, watch)

    def run_case(case: Case, watch: Watch) -> None:
        parts.taken()
        run(case, watch)
        _tell(CASE, parts, watch)

    return run_case


def _of_this_process() -> Parts:
    if not _parts:
        _parts.append(parts := Parts())
        opening_parts.device_started(parts)
        opening_parts.timed(parts)
        for runner, adapter in plain.ADAPTERS.items():
            if isinstance(adapter, Adapter):
                plain.ADAPTERS[runner] = opening_parts.timed_adapter(parts, adapter)
    return _parts[0]


def _tell(prefix: str, parts: Parts, watch: Watch) -> None:
    for name, seconds in parts.taken().items():
        watch.spent(f"{prefix}{name}", seconds)
