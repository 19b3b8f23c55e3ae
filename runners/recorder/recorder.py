"""The record that a process makes of its graph runners. Host values alone are read: nothing waits for a device, and no
token is looked at."""

from __future__ import annotations

import bisect
import itertools
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import ring
from .copies import Copies
from .rows import MODES, release, settings

# Exceptions of which a process writes a file: a server may catch one in every round.
_FAILURES, _NOTED = 4, "__eagleeye__"


class Recorder:
    """The record of a process. Mutable. A failure of its own ends the recording, never the server."""

    def __init__(self, folder: Path, calls: int = ring.CALLS) -> None:
        self.folder, self.calls = folder, calls
        self.facts: dict[str, Any] = {"format": ring.FORMAT, "pid": os.getpid(), "runners": {}}
        self._ring: ring.Ring | None = None
        self._broken = False
        self._numbers: dict[tuple[int, str], tuple[int, Sequence[int], int]] = {}
        self._batch: Any = None
        self._slots: tuple[int, ...] | None = None
        self._refused = 0
        self._failures = 0
        self._copies = Copies()

    def enter(self, runner: Any, name: str, batch: Any, graph: bool) -> int:
        """Write a call that begins. Its number; 0 if it could not be written."""
        if self._broken:
            return 0
        try:
            return self._enter(runner, name, batch, graph)
        except Exception as error:  # whatever a server's own objects raise: it must go on
            self._broken = True
            print(f"eagleeye: recording ends: {type(error).__name__}: {error}", file=sys.stderr)
            return 0

    def _enter(self, runner: Any, name: str, batch: Any, graph: bool) -> int:
        now = time.monotonic_ns()
        mode = getattr(getattr(batch, "forward_mode", None), "name", "")
        name = "verify" if name == "decode" and mode == "TARGET_VERIFY" else name
        number, buckets, width = self._numbers.get((id(runner), name)) or self._met(runner, name)
        assert self._ring
        count = int(batch.batch_size)
        flags = ring.GRAPH if graph else 0
        self._copies.settle(self._ring)
        lengths = _on_host(batch, count)
        copied = lengths is None
        if lengths is None:
            lengths = self._counted(count)
        flags |= (ring.COUNTED if copied else ring.LENGTHS) if lengths else 0
        slots = self._request_slots()
        if len(slots) == count == len(lengths):
            flags |= ring.SLOTS
        else:
            slots = (ring.UNKNOWN,) * len(lengths)
        everywhere = getattr(batch, "global_num_tokens_cpu", None)
        busiest = max(everywhere) // width if everywhere else 0
        place = bisect.bisect_left(buckets, max(count, busiest))
        bucket = buckets[place] if graph and place < len(buckets) else 0
        call = self._ring.enter(now, number, flags, count, bucket, busiest, lengths, slots)
        if copied and lengths:
            self._copies.begin(call, batch.seq_lens, count)
        return call

    def leave(self, number: int) -> None:
        if number and self._ring:
            self._ring.leave(number, ring.LEFT)

    def failed(self, number: int, error: BaseException) -> None:
        """Note an exception with sglang's innermost line, once, and write what there is."""
        if number and self._ring:
            self._ring.leave(number, ring.RAISED)
        if self._broken or not self._ring or hasattr(error, _NOTED) or self._failures == _FAILURES:
            return
        setattr(error, _NOTED, True)  # it comes by again on its way out
        self._failures += 1
        text = (str(error).splitlines() or [""])[0][:200]
        self.snapshot({"error": type(error).__name__, "text": text, "place": innermost(error), "call": number})

    def snapshot(self, failure: dict[str, Any] | None = None) -> Path | None:
        """A file with the last calls, beside the ring; None if nothing was recorded. failure: for the facts."""
        if self._broken or not self._ring:
            return None
        try:
            self._copies.settle(self._ring, all_of_them=True)
            if failure:
                self._say(failure=failure)
            taken = len(list(self.folder.glob(f"{self._ring.path.stem}-*{ring.ENDING}")))
            path = self.folder / f"{self._ring.path.stem}-{taken + 1}{ring.ENDING}"
            self._ring.copy(path)
        except (OSError, ValueError) as error:
            print(f"eagleeye: no recording written: {error}", file=sys.stderr)
            return None
        print(f"eagleeye: {path}", file=sys.stderr)
        return path

    def refused(self, runner: Any, name: str, batch: Any) -> None:
        """Write a batch that no graph runs, once, however often that is asked."""
        mode = getattr(getattr(batch, "forward_mode", None), "name", "")
        if mode in MODES and self._refused != id(batch):
            self._refused = id(batch)
            self.leave(self.enter(runner, name, batch, False))

    def running(self, batch: Any) -> None:
        """The scheduler's batch that runs from now on; None: it has run."""
        self._batch, self._slots, self._refused = batch, None, 0

    def forked(self) -> None:
        """Begin anew in a child of this process."""
        self._ring, self._batch, self._numbers, self._copies = None, None, {}, Copies()
        self.facts.update(pid=os.getpid(), runners={})

    def _request_slots(self) -> tuple[int, ...]:
        if self._slots is None:
            requests = getattr(self._batch, "reqs", None) or ()
            slots = [getattr(each, "req_pool_idx", None) for each in requests]
            if None in slots:
                slots = [getattr(getattr(each, "kv", None), "req_pool_idx", None) for each in requests]
            self._slots = tuple(ring.UNKNOWN if slot is None else int(slot) for slot in slots)
        return self._slots

    def _counted(self, count: int) -> list[int]:
        """Lengths by the tokens of each request so far, where the runner knows none on the host."""
        requests = getattr(self._batch, "reqs", None) or ()
        lengths = [len(each.origin_input_ids) + len(each.output_ids) for each in requests]
        return lengths if len(lengths) == count else []

    def _met(self, runner: Any, name: str) -> tuple[int, Sequence[int], int]:
        """A runner at its first call: its number, buckets and tokens a request."""
        inner = (getattr(runner, "runners", None) or [runner])[0]
        buckets = [int(size) for size in getattr(inner, "capture_bs", None) or ()]
        width = int(getattr(inner, "captured_req_width", 0) or getattr(inner, "num_tokens_per_bs", 0) or 1)
        number = len(self._numbers) + 1
        self._numbers[id(runner), name] = entry = (number, buckets, width)
        model_runner = getattr(inner, "model_runner", None)
        if self._ring is None:
            self._ring = ring.Ring(self._free_path(), self.calls)
            self.facts.update(release=release(), settings=settings(model_runner), began=time.time())
            for rank in ("tp_rank", "dp_rank", "gpu_id"):
                value = getattr(model_runner, rank, None)
                self.facts[rank] = value if isinstance(value, int) else None
        about = {"name": name, "class": type(runner).__name__, "buckets": buckets, "width": width}
        self._say(runners={**self.facts["runners"], str(number): about})
        return entry

    def _free_path(self) -> Path:
        """Not one of an earlier process with this number: a container starts its servers with the same ones."""
        stem = f"calls-{os.getpid()}"
        paths = (self.folder / f"{stem}{f'.{n}' if n > 1 else ''}.ring" for n in itertools.count(1))
        return next(path for path in paths if not path.exists() and not path.with_suffix(ring.ENDING).exists())

    def _say(self, **facts: Any) -> None:
        self.facts.update(facts)
        assert self._ring
        self._ring.say(self.facts)


def _on_host(batch: Any, count: int) -> list[int] | None:
    """The runner's own lengths; None if they are on a device alone."""
    for lengths in (getattr(batch, "seq_lens_cpu", None), getattr(batch, "seq_lens", None)):
        if lengths is not None and getattr(lengths, "is_cpu", True):
            values: list[int] = lengths.tolist()
            return values[:count]
    return None


def innermost(error: BaseException) -> str:
    """The line of sglang that an exception came from; any line if it is none of sglang's."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "/sglang/" in frame.filename] or frames
    if not inner:
        return ""
    _, name, path = inner[-1].filename.rpartition("/sglang/")
    return f"{'sglang/' if name else ''}{path}:{inner[-1].lineno} in {inner[-1].name}"
