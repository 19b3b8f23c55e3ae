"""A real session of a sglang with a cache in it: several functions are changed at once (tests/builders/cached.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import OpenSession, RunCase, Watch
from runners.sessions import mutation
from runners.sessions.open import close_session, open_session

__all__ = ["changed", "close_session", "open_session"]


def changed(change: Mapping[str, Any], open_session: OpenSession) -> OpenSession:
    def opened(setup: Setup, target: Target, watch: Watch) -> RunCase:
        for edit in change["edits"]:
            mutation.swap(edit)
        return open_session(setup, target, watch)

    return opened
