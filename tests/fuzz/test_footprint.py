"""A campaign's use of its machine: what is counted, and what counts as growth."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.footprint import FIRST_S, Footprint, Watch, footprint, grown, table
from repro.cases.case import Target
from repro.commands.last_resort import descendants
from repro.traces.campaign import Progress

STEADY = Footprint(seconds=60, cases=100, memory=60, workers=400, files=11, processes=3, disk=1)


def progress(seconds: float) -> Progress:
    target = Target("clean", "toy")
    return Progress(
        target=target,
        cases=int(seconds),
        replays=0,
        seconds=seconds,
        transitions=0,
        transitions_possible=0,
        findings=(),
        doing="running",
    )


def test_the_watch_looks_after_the_first_minute_and_then_as_often_as_asked(tmp_path: Path) -> None:
    reports: list[Progress] = []
    watch = Watch(reports.append, tmp_path, every=60)
    for seconds in (1, FIRST_S - 1, FIRST_S + 1, FIRST_S + 30, FIRST_S + 65, FIRST_S + 200):
        watch.tell(progress(seconds))
    assert [footprint.cases for footprint in watch.taken] == [61, 125, 260]
    assert len(reports) == 6


def test_the_watch_looks_once_more_at_the_end_where_a_minute_has_passed_since(tmp_path: Path) -> None:
    watch = Watch(lambda reports: None, tmp_path, every=300)
    for seconds in (1, FIRST_S + 1, 2 * FIRST_S, 3 * FIRST_S):
        watch.tell(progress(seconds))
        watch.end()
        watch.end()
    assert [taken.cases for taken in watch.taken] == [61, 180]


def test_files_processes_memory_and_disk_are_those_that_are_there(tmp_path: Path) -> None:
    before = footprint(os.getpid(), tmp_path, progress(1))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log").write_bytes(bytes(2 << 20))
    filler = bytearray(os.urandom(1 << 20) * 40)
    words = "import subprocess, sys; print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", words]
    with (tmp_path / "open").open("w"), subprocess.Popen(command, stdin=-1, stdout=-1) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        after = footprint(os.getpid(), tmp_path, progress(2))
        assert child.pid in descendants(os.getpid())
        child.stdin.close()
    assert after.processes == before.processes + 1
    assert after.files == before.files + 3
    assert 1.9 < after.disk - before.disk < 2.1
    assert after.workers - before.workers > 1
    assert after.memory - before.memory > 35 and len(filler) == 40 << 20


@pytest.mark.parametrize(
    ("name", "more"),
    [("memory", {"memory": 90}), ("open files", {"files": 40}), ("processes", {"processes": 9})],
)
def test_what_grows_is_named(name: str, more: dict[str, int]) -> None:
    later = dataclasses.replace(STEADY, seconds=3600, cases=9000, disk=50)
    assert grown([STEADY, later]) == []
    (text,) = grown([STEADY, dataclasses.replace(later, **more)])
    assert text.startswith(f"{name} grew from ")
    assert len(table("x", [STEADY, later])) == 4


def test_one_footprint_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="1 footprints"):
        grown([STEADY])
