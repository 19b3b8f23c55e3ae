"""Recordings of small servers, and rings that are written by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from runners.__main__ import main as runners
from runners.recorder import ring
from runners.recorder.ring import Ring
from tests.builders.served_sglang import server, sglang

LOOP = """
Scheduler(ARGUMENTS, {fails_at}).event_loop_normal(batches({count}))
"""


def recording(tmp_path: Path, body: str, *words: str, version: str = "0.5.23") -> tuple[int, Path]:
    """The exit code of `record` of a server with this body, and the folder that it wrote."""
    path = sglang(tmp_path / "path", version)
    script = server(tmp_path, body)
    out = tmp_path / "out"
    # As a server's own import path: behind the recorder's, which the environment has.
    command = ["sh", "-c", f'PYTHONPATH="$PYTHONPATH:{path}" exec {sys.executable} {script}']
    return runners(["record", "--out", str(out), *words, "--", *command]), out


def only_ring(out: Path) -> Path:
    (path,) = [path for path in out.iterdir() if path.stem.count("-") == 1]
    return path


def written(tmp_path: Path, count: int, calls: int = 8) -> Path:
    """A ring of so many calls, with one row each whose length is the call's number."""
    path = tmp_path / "calls.ring"
    writer = Ring(path, calls, rows=4)
    about = {"name": "draft", "class": "X", "buckets": [1, 2], "width": 2}
    writer.say({"release": "0.5.23", "runners": {"1": about}, "settings": {}})
    for number in range(1, count + 1):
        flags = ring.GRAPH | ring.LENGTHS | ring.SLOTS
        assert writer.enter(number, 1, flags, 1, 1, 0, [number], [3]) == number
        writer.leave(number, ring.LEFT)
    writer.close()
    return path
