"""runners.sessions.open, whose process or device dies on request: a request with certain `data` (ways_to_die.py)
says how, when its step's graph is about to be launched."""

from __future__ import annotations

import os
import time

import torch

from repro.cases.case import Case, Setup, Target
from repro.traces.trace import Array
from runners.recording.observer import RunCase, Watch
from runners.recording.packed import PackedLayout
from runners.sessions import open
from tests.builders.ways_to_die import WAYS, data_of

# Seconds that a hanging GPU hangs for, if nobody kills it.
HANG_S = 60


class _Tripwire(Watch):
    """Passes everything on, and brings about what the step asks for."""

    def __init__(self, watch: Watch, case: Case) -> None:
        self._watch, self._case = watch, case

    def at(self, step: int, path: str) -> None:
        self._watch.at(step, path)
        if path == "replay":
            numbers = {request.data for request in self._case.steps[step].requests}
            for way in WAYS:
                if data_of(way) in numbers:
                    _die(way)

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        self._watch.see(step, path, name, array)

    def see_all(self, step: int, what: PackedLayout, data: bytes) -> None:
        self._watch.see_all(step, what, data)

    def spent(self, stage: str, seconds: float) -> None:
        self._watch.spent(stage, seconds)

    def fact(self, name: str, text: str) -> None:
        self._watch.fact(name, text)


def _die(way: str) -> None:
    real = torch.cuda.is_initialized()
    if way == "abort":
        os.abort()
    elif way == "hang":
        # Without a GPU the process hangs instead.
        torch.cuda._sleep(HANG_S * 2 * 10**9) if real else time.sleep(HANG_S)
    elif way == "out of memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 TiB.")
    else:
        # Asynchronous, as such errors are: it surfaces at some later call.
        torch.zeros(1, device="cuda")[torch.full((1,), 1 << 40, device="cuda")]


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    opened = open.open_session(setup, target, watch)
    return lambda case, watch: opened(case, _Tripwire(watch, case))
