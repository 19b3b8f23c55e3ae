"""Sessions of the real runners in a process that records their calls, as a server does that imports the recorder."""

from __future__ import annotations

import os

from runners.recorder import hooks

RECORDER = hooks.start(os.environ["EAGLEEYE_X"])

from runners.sessions.open import (  # noqa: E402  # sglang is imported once the recorder waits for it
    close_session,
    open_session,
    rehearse,
)

__all__ = ["close_session", "open_session", "rehearse"]
