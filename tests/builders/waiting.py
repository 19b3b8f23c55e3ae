"""Waiting for what another process does, for as long as it takes on a machine with much else to do."""

from __future__ import annotations

import time
from collections.abc import Callable

from runners.processes.warm import Open


def comes(what: Callable[[], bool], within_s: float = 30.0) -> bool:
    """True once this comes true, however late, as long as it is not past all patience."""
    end = time.monotonic() + within_s
    while not (holds := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return holds


def has_said(session: Open, text: bytes) -> bool:
    """True if a session has sent this and it is unread."""
    session.inbox.wait(time.monotonic() + 30)
    return session.inbox.holds(text)
