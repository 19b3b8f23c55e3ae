"""runners.sessions.open, with one entry of sglang's request table wrong: the second token of request slot 1 lies where
the second token of slot 2 does. Graph and eager read it alike."""

from __future__ import annotations

import importlib
from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """The session and what fills its tables are imported here only: the tests run in a process without torch."""
    memory: Any = importlib.import_module("runners.sessions.memory")
    fill_table = memory.fill_table

    def misled(rows: Any, table: Any) -> None:
        fill_table(rows, table)
        rows[1, 1] = int(table[2, 1])

    memory.fill_table = misled
    session = importlib.import_module("runners.sessions.open")
    opened: RunCase = session.open_session(setup, target, watch)
    return opened
