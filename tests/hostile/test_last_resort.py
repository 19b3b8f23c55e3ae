"""A command that an interrupt does not end in time ends all the same, with all processes that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.builders.project import PROJECT, in_front
from tests.builders.waiting import comes

# Deaf: its interrupts come to nothing, as where an exception is swallowed.
DEAF = """
import signal, subprocess, sys, time
from repro.commands.last_resort import limit_ending
signal.signal(signal.SIGTERM, lambda number, frame: None)
limit_ending(0.2)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(child.pid, flush=True)
while True:
    time.sleep(1)
"""


def test_a_command_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "deaf.py"],
        env={**os.environ, "PYTHONPATH": in_front(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 3
    assert printed.startswith("error: interrupted, and ended 0.2 s later where it still was: ")
    assert comes(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
