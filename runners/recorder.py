"""The session's side of a trace: collects what is seen and sends it before anything dangerous runs."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np

from repro.trace import Array, Ended
from runners.watch import Unfit
from runners.wire import Frame, pack, write_all

# A step that records more than this between two calls of at() is sent in parts, so that memory stays bounded.
_PENDING_MAX = 8 << 20


class Recorder:
    """A Watch (runners/watch.py) that writes frames to a descriptor.

    Arrays are copied at once and sent together: one write per at(), about 10 us an array. The head of each frame
    is a list of events in the order in which they came, the body the arrays that its `see` events name.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._events: list[list[Any]] = []
        self._parts: list[bytes] = []
        self._pending = 0
        self._seconds: dict[str, float] = defaultdict(float)
        self.step = -1
        self.path = ""

    def at(self, step: int, path: str) -> None:
        start = time.perf_counter()
        self.step, self.path = step, path
        self._events.append(["at", step, path])
        self._flush()
        self._seconds["record"] += time.perf_counter() - start

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        start = time.perf_counter()
        array = np.asarray(array)
        if array.dtype.kind not in "biuf":
            raise Unfit(f"{path}/{name}: an array of {array.dtype} cannot be recorded")
        part = array.tobytes()
        self._events.append(["see", step, path, name, [array.dtype.str, array.shape]])
        self._parts.append(part)
        self._pending += len(part)
        if self._pending > _PENDING_MAX:
            self._flush()
        self._seconds["record"] += time.perf_counter() - start

    def spent(self, stage: str, seconds: float) -> None:
        self._seconds[stage] += seconds

    def fact(self, name: str, text: str) -> None:
        self._events.append(["fact", name, text])

    def printed(self, length: int) -> None:
        """Say how much this session has printed so far: what comes from here on belongs to the run that begins."""
        self._events.append(["printed", length])

    def ended(self, ended: Ended) -> None:
        """Send what is left and how the run ended."""
        self._events.append(["ended", ended.how.value, ended.step, ended.path, ended.what, ended.detail])
        self._flush()

    def _flush(self) -> None:
        stages = [["spent", stage, seconds] for stage, seconds in self._seconds.items()]
        self._seconds.clear()
        frame = Frame(head={"events": stages + self._events}, body=b"".join(self._parts))
        self._events, self._parts, self._pending = [], [], 0
        write_all(self._handle, pack(frame))
