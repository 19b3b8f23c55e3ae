"""A session is silent for too long only by seconds in which it could have spoken."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from runners.processes import patience
from runners.processes.wire import Silence
from runners.processes.worker_handle import Worker, WorkerTrouble

NOW = 1000.0


def silences(
    monkeypatch: pytest.MonkeyPatch, work: Sequence[bool], starved: Sequence[float]
) -> tuple[Callable[[float], None], list[float]]:
    """A wait that raises Silence at each deadline, and the deadlines that it saw. work: whether compilers are at work
    at each; starved: seconds, at the start and at each."""
    busy, waits, deadlines = iter(work), iter(starved), list[float]()
    monkeypatch.setattr(patience, "at_work", lambda _: next(busy))
    monkeypatch.setattr(patience, "kernels_are_locked", lambda: False)
    monkeypatch.setattr(patience, "_starved", lambda _: next(waits))
    monkeypatch.setattr("time.monotonic", lambda: deadlines[-1])

    def wait(deadline: float) -> None:
        deadlines.append(deadline)
        raise Silence

    return wait, deadlines


def test_a_session_that_is_blocked_has_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, deadlines = silences(monkeypatch, [False], [5.0, 5.5])
    with pytest.raises(Silence):
        patience.patient(wait, 1, NOW)
    assert deadlines == [NOW]


def test_what_was_compiled_may_be_loaded_after_its_compilers_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, deadlines = silences(monkeypatch, [True, False, False], [0.0] * 4)
    with pytest.raises(Silence):
        patience.patient(wait, 1, NOW)
    assert deadlines == [NOW, NOW + 30, NOW + 60]


def test_seconds_without_a_processor_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, deadlines = silences(monkeypatch, [False] * 3, [10.0, 100.0, 145.0, 145.2])
    with pytest.raises(Silence):
        patience.patient(wait, 1, NOW)
    assert deadlines == [NOW, NOW + 90, NOW + 135]


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, deadlines = silences(monkeypatch, [True] * 40, [0.0] * 41)
    with pytest.raises(Silence):
        patience.patient(wait, 1, NOW)
    assert deadlines[-1] == NOW + 900


def started(script: str) -> Worker:
    """A worker of this script. Its `say` sends a message."""
    script = f"import os, time\ndef say(text): os.write(0, text)\n{script}"
    return Worker.started([sys.executable, "-c", script], os.environ, subprocess.DEVNULL)


def test_a_worker_that_had_no_processor_may_start_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter(range(0, 900, 10))
    monkeypatch.setattr(patience, "_starved", lambda _: next(waits))
    worker = started("""time.sleep(0.3); say(b'{"say": "ready"}')""")
    try:
        worker.wait_ready(0.1)
    finally:
        worker.end()


def test_a_worker_that_is_blocked_does_not_start() -> None:
    worker = started("time.sleep(600)")
    try:
        with pytest.raises(WorkerTrouble, match=r"sent nothing for 0\.1 s"):
            worker.wait_ready(0.1)
    finally:
        worker.end()


def test_kernels_that_another_process_compiles_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, deadlines = silences(monkeypatch, [False] * 3, [0.0] * 4)
    answers = iter((True, False, False))
    monkeypatch.setattr(patience, "kernels_are_locked", lambda: next(answers))
    with pytest.raises(Silence):
        patience.patient(wait, 1, NOW)
    assert deadlines == [NOW, NOW + 30, NOW + 60]


def test_a_lock_on_kernels_is_seen_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "cached_ops" / "prefill.lock"
    path.parent.mkdir()
    with path.open("w") as file:
        assert not patience.kernels_are_locked(tmp_path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert patience.kernels_are_locked(tmp_path)
        assert not patience.kernels_are_locked(tmp_path / "elsewhere")
    assert not patience.kernels_are_locked(tmp_path)
    assert not patience.kernels_are_locked(tmp_path, tmp_path / "no list")


def test_linux_counts_the_seconds_without_a_processor() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while any(patience._starved(each.pid) < 0.2 for each in spinning):
            assert time.monotonic() < deadline, [patience._starved(each.pid) for each in spinning]
            time.sleep(0.05)
    finally:
        for each in spinning:
            each.kill()
            each.wait()
    assert patience._starved(spinning[0].pid) == 0.0
