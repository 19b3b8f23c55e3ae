"""The session's side of a trace: collects what is seen and sends it before anything dangerous runs."""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from typing import Any

import numpy as np

from repro.traces.trace import Array, End
from runners.processes.wire import packed, write_all
from runners.recording.observer import HarnessError, Watch
from runners.recording.packed import PackedLayout

# A step that records more than this between two calls of at() is sent in parts, so that memory stays bounded.
_PENDING_MAX = 8 << 20


@functools.cache
def _quoted(word: str) -> str:
    return json.dumps(word)


class Recorder(Watch):
    """A Watch that writes frames to a descriptor.

    Arrays are copied at once and sent together: one write per at(). The head of each frame is a list of events in the
    order in which they came, the body the arrays that its `see` and `packed` events name.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._events: list[str] = []  # as JSON
        self._parts: list[bytes] = []
        self._pending = 0
        self._seconds: dict[str, float] = defaultdict(float)
        self.step = -1
        self.path = ""

    def at(self, step: int, path: str) -> None:
        start = time.perf_counter()
        self.step, self.path = step, path
        self._events.append(f'["at",{step},{_quoted(path)}]')
        self._flush()
        self._seconds["record"] += time.perf_counter() - start

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        start = time.perf_counter()
        array = np.asarray(array)
        if array.dtype.kind not in "biuf":
            raise HarnessError(f"{path}/{name}: an array of {array.dtype} cannot be recorded")
        self._say("see", step, path, name, [array.dtype.str, array.shape])
        self._add(array.tobytes())
        self._seconds["record"] += time.perf_counter() - start

    def see_all(self, step: int, what: PackedLayout, data: bytes) -> None:
        start = time.perf_counter()
        self._events.append(f'["packed",{step},{what.text}]')
        self._add(what.recorded_bytes(data))
        self._seconds["record"] += time.perf_counter() - start

    def spent(self, stage: str, seconds: float) -> None:
        self._seconds[stage] += seconds

    def fact(self, name: str, text: str) -> None:
        self._say("fact", name, text)

    def printed(self, length: int) -> None:
        """Say how much this session has printed so far: what comes from here on belongs to the run that begins."""
        self._say("printed", length)

    def ended(self, ended: End) -> None:
        """Send what is left and how the run ended."""
        self._say("ended", ended.how.value, ended.step, ended.path, ended.what, ended.detail)
        self._flush()

    def _say(self, *event: Any) -> None:
        self._events.append(json.dumps(event, separators=(",", ":")))

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._pending += len(part)
        if self._pending > _PENDING_MAX:
            self._flush()

    def _flush(self) -> None:
        for stage, seconds in self._seconds.items():
            self._events.append(f'["spent",{_quoted(stage)},{seconds!r}]')
        self._seconds.clear()
        head = f'{{"events":[{",".join(self._events)}]}}'
        body = b"".join(self._parts)
        self._events, self._parts, self._pending = [], [], 0
        write_all(self._handle, packed(head.encode(), body))
