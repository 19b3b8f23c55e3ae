"""Processes side by side in one folder: each has its own default places, and all end well."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import BinaryIO

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.atomic_file import _sweep, written
from repro.cases.codec import Seed
from repro.cases.own_place import own_file, own_folder, temporary_folder
from tests.builders.project import PROJECT, in_front
from tests.repro.test_repro_main import CASE

SIDE_BY_SIDE = 8


def test_of_many_at_once_each_has_a_folder(tmp_path: Path) -> None:
    together = Barrier(SIDE_BY_SIDE)

    def make(number: int) -> Path:
        together.wait()
        return own_folder(tmp_path / "out", "run")

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        folders = list(threads.map(make, range(SIDE_BY_SIDE)))
    assert len(set(folders)) == SIDE_BY_SIDE == len(list((tmp_path / "out").iterdir()))


def test_a_file_in_the_way_is_an_error_and_no_endless_search(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OSError):
        own_folder(tmp_path / "out", "run")


def test_who_comes_second_writes_beside(tmp_path: Path) -> None:
    usual = tmp_path / "a.small.json"
    usual.write_text("of an earlier run")
    with own_file(usual) as first, own_file(usual) as second:
        assert (first, second) == (usual, tmp_path / "a-2.small.json")
    with own_file(usual) as third:
        assert third == usual
    assert [path.name for path in tmp_path.iterdir()] == ["a.small.json"]


def killed_in(script: str, folder: Path) -> str:
    """Run this script until it waits; the line that it prints."""
    line = [sys.executable, "-c", f"{script}; print(name, flush=True); input()"]
    environment = {**os.environ, "PYTHONPATH": in_front(PROJECT), "TMPDIR": str(folder)}
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout
        name = process.stdout.readline().strip()
        process.kill()
    return name


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "from repro.cases.own_place import temporary_folder; kept = temporary_folder('a-'); name = kept.__enter__()"
    )
    left = killed_in(script, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "b").mkdir()
    (tmp_path / "a-link").symlink_to(tmp_path / "b")
    assert Path(left).is_dir()
    with temporary_folder("a-") as first, temporary_folder("a-") as second:
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "b", "a-link"}
    assert {path.name for path in tmp_path.iterdir()} == {"b", "a-link"}


def test_a_temporary_folder_that_another_process_removes_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make = tempfile.mkdtemp
    swept: list[str] = []

    def make_and_wait(prefix: str) -> str:
        folder = make(prefix=prefix)
        if not swept:
            swept.append(folder)
            with temporary_folder(prefix):  # as another process that is faster
                assert not Path(folder).exists()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_wait)
    with temporary_folder("a-") as folder:
        assert list(tmp_path.iterdir()) == [folder] and swept != [str(folder)]
    assert not list(tmp_path.iterdir())


def test_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    script = "from pathlib import Path; from repro.cases.atomic_file import written; "
    script += f"kept = written(Path({str(tmp_path / 'left')!r})); name = kept.__enter__().name"
    left = Path(killed_in(script, tmp_path))
    other = tmp_path / ".another-programs.tmp"
    other.write_text("")
    assert left.exists()
    with written(tmp_path / "now"):
        assert not left.exists()
        _sweep.__wrapped__(tmp_path)  # as another process: what is being written stays
    assert {path.name for path in tmp_path.iterdir()} == {"now", other.name}


def test_a_file_is_renamed_before_another_process_can_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def sweep_and_replace(path: Path, target: Path) -> Path:
        _sweep.__wrapped__(tmp_path)  # as another process at this moment
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", sweep_and_replace)
    with written(tmp_path / "now") as file:
        file.write(b"whole")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"now": b"whole"}


def test_a_file_that_took_the_place_of_a_removed_one_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".now.1-2.tmp"
    left.write_bytes(b"left by a killed writer")
    lock = fcntl.flock

    def made_again_and_lock(file: BinaryIO, how: int) -> None:
        left.unlink()
        left.write_bytes(b"of another writer")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", made_again_and_lock)
    _sweep.__wrapped__(tmp_path)
    assert left.read_bytes() == b"of another writer"


def test_a_shrink_beside_another_one_says_where_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = tmp_path / "a.json"
    codec.write(seed, Seed(case=CASE))
    shrink = ["shrink", str(seed), "--target", "stale_padding/toy", "--tries", "1", "--runs", "5"]
    with own_file(tmp_path / "a.small.json"):
        assert main(shrink) == 1
    output = capsys.readouterr().out
    assert f"{tmp_path / 'a.small.json'} is being written by another process" in output
    assert (tmp_path / "a-2.small.json").exists() and not (tmp_path / "a.small.json").exists()


@pytest.mark.exhaustive
def test_eight_campaigns_started_at_once_from_one_folder_all_end_well(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "fuzz", "run", "--target", "clean/toy", "--cases", "12"]
    environment = os.environ | {"PYTHONPATH": in_front(PROJECT)}
    started = [
        subprocess.Popen(
            line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(SIDE_BY_SIDE)
    ]
    ended = [(process.communicate(timeout=300)[0], process.returncode) for process in started]
    assert [code for _, code in ended] == [0] * SIDE_BY_SIDE, ended
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) == SIDE_BY_SIDE
    assert all((folder / "record.json").is_file() and not list(folder.glob("in-flight*")) for folder in folders)
