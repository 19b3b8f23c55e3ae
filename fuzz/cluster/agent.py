"""The agent of a node: starts our own processes, one a slot, each with its GPU, and gives them chunks.

It lives in a worker of Ray, which has this module's code and nothing else of ours: no CUDA, no torch, nothing that can
crash it. So it needs the standard library alone. What it hands back is a few KB a chunk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
# To say ready: imports, and nothing of sglang yet.
START_S = 120.0
# To end after an interrupt: the chunk under way is left, and its worker ends.
STOP_S = 2.0
LOG_END = 400  # bytes of a dead process's log to report


class Agent:
    """job: what a slot is to know (fuzz/commands/cluster.py says what); slots: how many, in turn on these devices, or
    on those that this process was given. folder: for the slots' files; None: a new one. Mutable."""

    def __init__(
        self, job: Mapping[str, Any], slots: int, devices: Sequence[str] = (), folder: Path | None = None
    ) -> None:
        if not devices:
            listed = [device for device in os.environ.get(VISIBLE, "").split(",") if device]
            # Without a reservation Ray leaves all GPUs visible: what has none reserved must not touch any.
            devices = listed if job["cuda"] else [""]
        if not devices:
            raise RuntimeError("no GPU is reserved for this node")
        self._job = dict(job) | {"slots": slots, "devices": len({*devices})}
        self._folder = folder or Path(tempfile.mkdtemp(prefix=_prefix(job)))
        self._slots = [_Slot(self._job, self._folder / str(n), devices[n % len(devices)]) for n in range(slots)]
        self._turn = threading.Condition()
        self._begun = 0.0  # when the first chunk had ended: a worker's start does not count
        self._stopped = False

    def start(self) -> dict[str, Any]:
        """Start the first slot. Gives its description or, as `trouble`, why it cannot start."""
        with self._slot_for({}) as slot:
            return slot.start()

    def start_all(self) -> list[dict[str, Any]]:
        """Start all slots side by side: the same of each."""
        with ThreadPoolExecutor(len(self._slots)) as threads:
            return list(threads.map(_Slot.start, self._slots))

    def run(self, chunk: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
        """Have a free slot do this chunk; its result, or `lost`, how its process died. seconds: after which no further
        case is to be begun."""
        started = time.monotonic()
        with self._slot_for(chunk) as slot:
            if self._stopped:
                return {"say": "stopped"}
            now = time.monotonic()
            waited = now - max(started, self._begun or now)
            result = slot.run(chunk, None if seconds is None else max(0.0, seconds - waited))
            self._begun = self._begun or time.monotonic()
            return result

    @contextlib.contextmanager
    def _slot_for(self, chunk: Mapping[str, Any]) -> Iterator[_Slot]:
        """A slot, reserved within this. While a chunk waits it is the next one of a slot, which may open
        sessions for it; if another one is free before, that one does it."""
        with self._turn:
            slot = self._free_for(chunk)
            if slot is None:
                promised = next((slot for slot in self._slots if slot.next is None), None)
                if promised:
                    promised.next = chunk
                slot = self._turn.wait_for(lambda: self._free_for(chunk))
                if promised:
                    promised.next = None
            assert slot
            slot.free = False
        try:
            yield slot
        finally:
            with self._turn:
                slot.free = True
                self._turn.notify_all()

    def _free_for(self, chunk: Mapping[str, Any]) -> _Slot | None:
        """The slot whose next one this is, else one that has no next one."""
        free = [slot for slot in self._slots if slot.free and (slot.next is None or slot.next is chunk)]
        return max(free, key=lambda slot: slot.next is chunk, default=None)

    def doing(self) -> list[dict[str, Any]]:
        """The work that each slot is at."""
        return [dict(slot.doing) for slot in self._slots]

    def pids(self) -> list[int]:
        """The processes of the slots."""
        return [process.pid for slot in self._slots if (process := slot.process)]

    def interrupt(self) -> None:
        """End the work under way, with its results so far; waiting work is not begun."""
        self._stopped = True
        for slot in self._slots:
            slot.signal(signal.SIGINT)

    def close(self) -> None:
        """End all slots and remove their folders."""
        self._stopped = True
        until = time.monotonic() + STOP_S
        for slot in self._slots:
            slot.hang_up()
        for slot in self._slots:
            slot.end(max(0.0, until - time.monotonic()))
        # Also what agents of this campaign have left here that were killed.
        for folder in self._folder.parent.glob(f"{_prefix(self._job)}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(job: Mapping[str, Any]) -> str:
    return f"eagleeye-{job['campaign']}-"


class _Slot:
    """One process, started anew when it has died. Mutable: whether it is free, and which chunk it is to do next."""

    def __init__(self, job: Mapping[str, Any], folder: Path, device: str) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.doing: dict[str, Any] = {}
        self.free = True
        self.next: Mapping[str, Any] | None = None
        self._job, self._folder, self._device = job, folder, device

    def start(self) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | self._job["environment"] | {VISIBLE: self._device}
        # This node's path stays: a bundle's Hypothesis, say, is in front of the host's own.
        paths = (self._job["checkout"], environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with (self._folder / "slot.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fuzz", "slot"],
                cwd=self._job.get("folder", self._job["checkout"]),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        late = threading.Timer(START_S, self.process.kill)
        late.start()
        answer = self._ask(dict(self._job) | {"out": str(self._folder), "device": self._device}, "ready")
        late.cancel()
        return answer or {"trouble": self._died()}

    def run(self, chunk: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
        if self.process is None:
            answer = self.start()
            if "trouble" in answer:
                return {"lost": answer["trouble"]}
        answer = self._ask({"chunk": chunk, "seconds": seconds}, "result")
        self.doing = {}
        return answer or {"lost": self._died()}

    def _ask(self, message: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """The answer of this kind, empty if the process died first. The next chunk is announced while it works."""
        assert self.process and self.process.stdout
        announced = None
        with contextlib.suppress(OSError, ValueError):
            self._say(message)
            for text in self.process.stdout:
                report: dict[str, Any] = json.loads(text)
                if report["say"] == answer:
                    return report
                self.doing = report
                if (following := self.next) is not announced:
                    announced = following
                    self._say({"next": following})
        return {}

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self.process and self.process.stdin
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _died(self) -> str:
        """The end of the process. Its children see that it is gone, and end by themselves."""
        self.end()
        process, self.process = self.process, None
        code = process.returncode if process else 0
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        printed = (self._folder / "slot.log").read_bytes()[-LOG_END:].decode(errors="replace").strip()
        return f"{how}: {printed.splitlines()[-1]}" if printed and code > 0 else how

    def signal(self, number: int) -> None:
        process = self.process
        if process and process.poll() is None:
            process.send_signal(number)

    def hang_up(self) -> None:
        """It hears the end of its input, and ends."""
        process = self.process
        if process and process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def end(self, within_s: float = STOP_S) -> None:
        """Return when it has ended, by itself if it does in time."""
        process = self.process  # the slot's own thread forgets it once it has ended
        if process is None:
            return
        self.hang_up()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()
