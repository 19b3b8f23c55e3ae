"""A session that goes wrong on request: a number in the setup says how, so that one pool can survive it all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

from repro.cases.case import Case, Request, Setup, Step, Target
from runners.recording.observer import HarnessError, RunCase, Unsupported, Watch
from tests.builders.waiting import comes

if os.environ.get("MISBEHAVE_IMPORT") == "raise":
    raise ImportError("no module named moon")
if os.environ.get("MISBEHAVE_IMPORT") == "die":
    print("about to die while importing", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
if os.environ.get("MISBEHAVE_IMPORT") == "hang":
    time.sleep(600)


WAYS = (
    "well",
    "raise-in-build",
    "refused-in-build",
    "crash-in-build",
    "hang-in-build",
    "raise-in-capture",
    "hang-in-capture",
    "crash",
    "crash-with-children",
    "abort-with-cuda-error",
    "exit",
    "half-frame",
    "raise",
    "sys-exit",
    "raise-cuda",
    "fails",
    "object-array",
    "garbage",
    "wrong-event",
    "kill-worker",
    "print",
    "hang",
    "hang-with-children",
    "compile",
    "chatter-without-end",
    "slow-steps",
    "many-arrays",
    "slow-to-open",
    "slow-to-open-and-crash",
    "print-and-crash",
    "print-cuda-error",
    "needs-room",
    "stays",
    "opens-with-others",
    "fault-in-build",
    "abort-in-build",
    "fault-in-copy",
    "abort-with-long-dump",
    "fault-at-close",
    "abort-at-close",
    "silent-abort-at-close",
    "abort-at-rest",
    "no-room-at-close",
    "abort-once-opened",
    "fault-in-flight",
)


# How long such a session takes to open.
OPENING_S = 0.5
# How long one rests behind a case before it aborts.
RESTING_S = 0.2
# How long one that needs room takes to end.
ENDING_S = 0.5
# How many sessions that open with others must be at it at once.
COMPANY = 4


def going(way: str, steps: int = 3) -> Case:
    """A case in whose second step, or earlier, the session goes wrong in this way."""
    setup = Setup(
        runner="toy",
        topk=2,
        num_steps=3,
        num_draft_tokens=4,
        capture_bs=(2, 4),
        slots=4,
        vocab_size=100 + WAYS.index(way),
    )
    return Case(setup=setup, steps=(Step(requests=(Request(slot=1, seq_len=5, data=7),)),) * steps)


class AcceleratorError(RuntimeError):
    """Named as torch names it."""


_open = [""]  # how the session behaves that is open


TERMINATE = "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  "
ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for it in the manual"


def close_session() -> None:
    if _open[0] == "stays":
        raise HarnessError("the last setup was not freed")
    if _open[0] == "fault-at-close":
        raise AcceleratorError(ILLEGAL)
    if _open[0] == "no-room-at-close":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    if _open[0].endswith("abort-at-close"):
        _abort(silent=_open[0].startswith("silent"))


class Pinned:
    """Behaves as pinned memory with a copy under way: letting go of it asks the device, and a destructor cannot
    raise."""

    def __del__(self) -> None:
        _abort()


def _abort(*, silent: bool = False, words_after: int = 0) -> None:
    """End the process as C++ does for an exception that a destructor throws."""
    words = "" if silent else f"{TERMINATE}{ILLEGAL}"
    print(words, "word " * words_after, sep="\n", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    how = _open[0] = WAYS[setup.vocab_size - 100]
    watch.fact("way", how)
    if how.startswith(("slow-to-open", "needs-room", "opens-with-others")):
        watch.fact("pid", str(os.getpid()))
    _while_building(how)
    watch.at(-1, "capture")
    if how == "abort-once-opened":
        threading.Timer(RESTING_S, _abort).start()
    if how == "raise-in-capture":
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nadvice")
    if how == "hang-in-capture":
        time.sleep(600)

    def run_case(case: Case, watch: Watch) -> None:
        for step in range(len(case.steps)):
            if how == "many-arrays":
                _record_many(step, watch)
                continue
            watch.see(step, "input", "positions", np.arange(6).reshape(2, 3)[:, ::-1])
            watch.see(step, "launch", "bs", np.array(4, dtype=np.int32))
            watch.at(step, "graph")
            if how == "slow-steps":
                time.sleep(0.2)
            if how == "print-cuda-error":
                _print_cuda_error(step, len(case.steps))
            if step == 1:
                _go_wrong(how, watch)
            watch.see(step, "graph", "tokens", np.full((step + 1, 2), step, dtype=np.float16))
            watch.spent("graph", 0.25)
        if how == "abort-at-rest" and len(case.steps) > 1:
            threading.Timer(RESTING_S, _abort).start()

    return run_case


def _record_many(step: int, watch: Watch) -> None:
    array = np.arange(64)
    watch.at(step, "graph")
    for number in range(20):
        watch.see(step, "graph", f"array{number}", array)


def _while_building(how: str) -> None:
    if how.startswith("slow-to-open"):
        time.sleep(OPENING_S)
    if how == "needs-room":
        _end_slowly()
        if len(_siblings()) > 1:
            raise RuntimeError("not enough memory")
    if how == "opens-with-others":
        meeting = Path(os.environ["MISBEHAVE_MEETING"])
        (meeting / str(os.getpid())).touch()
        if not comes(lambda: len(list(meeting.iterdir())) >= COMPANY, 15):
            raise RuntimeError("no others open")
    if how == "raise-in-build":
        raise AttributeError("no such class")
    if how == "refused-in-build":
        raise Unsupported("there is no such backend")
    if how == "fault-in-build":
        raise AcceleratorError(ILLEGAL)
    if how == "abort-in-build":
        _abort()
    if how == "crash-in-build":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang-in-build":
        time.sleep(600)


def _end_slowly() -> None:
    """End slowly, as a process that has much memory to give back."""
    end = os._exit

    def later(status: int) -> NoReturn:
        time.sleep(ENDING_S)
        end(status)

    os._exit = later


def _siblings() -> list[int]:
    """The sessions of this worker, this one among them."""
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    return [int(child) for child in children if "Z" not in Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1]]


def _print_cuda_error(step: int, steps: int) -> None:
    """Three steps only print it; two only crash."""
    if steps == 3:
        print("CUDA error: device-side assert triggered", file=sys.stderr)
    elif step == 1:
        ctypes.string_at(0)


def _go_wrong(how: str, watch: Watch) -> None:
    if how == "print-and-crash":
        print("CUDA error: device-side assert triggered", file=sys.stderr, flush=True)
    if how in ("crash", "slow-to-open-and-crash", "print-and-crash"):
        watch.see(1, "graph", "never_sent", np.zeros(1))
        ctypes.string_at(0)
    elif how.startswith("abort-with"):
        _abort(words_after=10_000 if how == "abort-with-long-dump" else 0)
    elif how == "exit":
        os._exit(7)
    elif how == "sys-exit":
        sys.exit(7)
    elif how == "hang":
        _hang_here()
    elif how.endswith("-with-children"):
        child = subprocess.Popen(["sleep", "600"])
        watch.fact("child", str(child.pid))
        watch.at(1, "eager")
        if how.startswith("crash"):
            os.abort()
        time.sleep(600)
    elif how == "compile":
        watch.at(1, "graph")
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 2: pass"], check=True)
    elif how == "chatter-without-end":
        while True:
            watch.see(1, "graph", "again", np.zeros(1 << 17))
    elif how == "raise":
        raise KeyError("slot")
    elif how == "raise-cuda":
        raise AcceleratorError(ILLEGAL)
    elif how == "fault-in-flight":
        here = Pinned()
        raise AcceleratorError(f"{ILLEGAL} {here.__class__}")
    elif how == "fault-in-copy":
        try:
            raise AcceleratorError(ILLEGAL)
        except AcceleratorError as error:
            raise HarnessError("what the step left could not be read") from error
    elif how == "fails":
        raise HarnessError("this release has no such field")
    elif how == "print":
        print("garbage on standard output", flush=True)
        os.write(1, b"\x00\xff raw bytes")
    elif how in ("garbage", "wrong-event", "half-frame"):
        os.write(_channel(), GARBAGE[how])
        if how == "half-frame":
            os._exit(9)
        time.sleep(600)
    elif how == "object-array":
        watch.see(1, "graph", "tokens", np.array([object()]))
    elif how == "kill-worker":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


GARBAGE = {
    "garbage": b"Traceback (most recent call last):\n" * 10,
    "wrong-event": b"eye1" + (22).to_bytes(4, "little") + bytes(8) + b'{"events":[["done!"]]}',
    "half-frame": b"eye1" + (500).to_bytes(4, "little") + bytes(8) + b'{"events":',
}


def _hang_here() -> None:
    while True:
        time.sleep(600)


def _channel() -> int:
    """The session's own descriptor to the pool: the one stream socket that is open."""
    for number in range(3, 64):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as channel:
            if channel.type == socket.SOCK_STREAM:
                return number
    raise LookupError("no channel")
