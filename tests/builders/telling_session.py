"""A session that says what its worker is: its environment, its import path, and what it draws."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from importlib import metadata

from repro.cases.case import Case, Setup, Target
from runners.recording.observer import RunCase, Watch

print("a session was imported", flush=True)
if os.environ.get("EAGLEEYE_X") == "raise":
    raise ImportError("no module named moon")
if os.environ.get("EAGLEEYE_X") == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
DRAWN = random.random()


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    watch.fact("variable", os.environ.get("EAGLEEYE_X", "absent"))
    watch.fact("path", json.dumps(sys.path))
    watch.fact("version", metadata.version("sglang"))
    watch.fact("drawn", str(DRAWN))

    def run_case(case: Case, watch: Watch) -> None:
        watch.at(0, "graph")

    return run_case
