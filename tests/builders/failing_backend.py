"""A session whose attention backend raises while it is made, as a broken sglang's would."""

from __future__ import annotations

import importlib
from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open as opening


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    backend: Any = importlib.import_module("sglang.srt.layers.attention.triton_backend").TritonAttnBackend

    def broken(*_: object, **__: object) -> None:
        raise ValueError("planted")

    backend.__init__ = broken
    return opening.open_session(setup, target, watch)
