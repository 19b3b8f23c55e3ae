"""runners.sessions.open, with one entry of sglang's request table wrong: the second token of request slot 1 lies where
the second token of slot 2 does. Graph and eager read it alike."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import memory, open


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    fill_table = memory.fill_table

    def misled(rows: Any, table: Any) -> None:
        fill_table(rows, table)
        rows[1, 1] = int(table[2, 1])

    memory.fill_table = misled
    return open.open_session(setup, target, watch)
