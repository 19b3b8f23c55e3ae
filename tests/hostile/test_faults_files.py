"""Attacked from outside: outputs that are no regular files, disks that are full, and inputs without an end."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import __main__ as fuzz
from reports import __main__ as reports
from repro import __main__ as repro
from repro.cases import bounded_file
from repro.cases.atomic_file import append_text, write_text, written
from repro.cases.bounded_file import read_bytes
from repro.commands.cli import ended
from repro.traces.exit_codes import ExitCode
from tests.builders.project import PROJECT
from tests.builders.refusals import refusal

SEED = PROJECT / "repro" / "seeds" / "pr24401-stale-positions.json"


def test_a_full_device_is_named_and_stays_a_device() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_text(Path("/dev/full"), "text")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        append_text(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()


def test_a_device_made_for_this_is_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("this user may make or open no devices")  # mknod needs root
    write_text(device, "text")
    assert device.is_char_device() and list(tmp_path.iterdir()) == [device]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    taken: list[str] = []
    reader = threading.Thread(target=lambda: taken.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(10)
    assert taken == ["text"] and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, file = tmp_path / "link", tmp_path / "folder" / "file"
    link.symlink_to(file)
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink() and file.read_text() == text
    assert [path.name for path in file.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("redirected", [False, True])
def test_standard_output_as_a_file_goes_behind_what_was_printed(redirected: bool, tmp_path: Path) -> None:
    script = "from pathlib import Path; from repro.cases.atomic_file import write_text; " + (
        "print('before'); write_text(Path('/dev/stdout'), 'text\\n'); print('after')"
    )
    command, out = [sys.executable, "-c", script], tmp_path / "out"
    if redirected:
        with out.open("wb") as file:
            subprocess.run(command, cwd=PROJECT, stdout=file, check=True)
    else:
        out.write_bytes(subprocess.run(command, cwd=PROJECT, capture_output=True, check=True).stdout)
    assert out.read_text() == "before\ntext\nafter\n"


def test_a_disk_that_fills_up_leaves_the_old_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    write_text(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_text(path, "new")
    assert error.value.filename == str(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), written(tmp_path / "out") as file:
        file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_whose_disk_is_full_name_their_file(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: make setup-checks")
    (tmp_path / "out").mkdir()
    words = ("run", "--target", "clean/toy", "--cases", "1", "--out", tmp_path / "run", "--json", tmp_path / "one.json")
    with contextlib.redirect_stdout(io.StringIO()):
        assert fuzz.main([str(word) for word in words]) == 0
    (tmp_path / "out" / f"runs.{kind}").symlink_to("/dev/full")
    line = refusal(reports.main, "summary", f"--{kind}", tmp_path / "out", tmp_path / "one.json")
    assert line == f"{tmp_path}/out/runs.{kind}: No space left on device"


def test_a_commands_json_may_be_a_full_device(tmp_path: Path) -> None:
    words = ("run", "--target", "clean/toy", "--cases", "1", "--out", tmp_path / "out", "--json", "/dev/full")
    assert refusal(fuzz.main, *words) == "/dev/full: No space left on device"


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bounded_file, "WAIT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_what_is_read_has_an_end(pipe: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(OSError, match="11 bytes are too many: the limit is 10"):
        read_bytes(Path("/dev/zero"), 10)
    with pytest.raises(OSError, match="nothing was written into it"):
        read_bytes(pipe, 10)
    assert read_bytes(Path("/dev/null"), 10) == b""
    assert time.monotonic() - begun < 5


def test_a_pipe_with_a_writer_is_read_to_its_end(pipe: Path) -> None:
    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            for _ in range(3):
                file.write(b"part ")
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    # A writer's open waits for a reader, and a reader's first look for a writer.
    assert read_bytes(pipe, 100) == b"part part part "
    writer.join()


COMMANDS: dict[str, Callable[[Path], str]] = {
    "seed shown": lambda path: refusal(repro.main, "show", path),
    "seed run": lambda path: refusal(repro.main, "run", path, "--target", "clean/toy"),
    "seed shrunk": lambda path: refusal(repro.main, "shrink", path, "--target", "clean/toy"),
    "known issues": lambda path: refusal(repro.main, "run", SEED, "--target", "clean/toy", "--known-issues", path),
    "campaign's record": lambda path: refusal(reports.main, "summary", path),
    "seed of an issue": lambda path: refusal(reports.main, "issue", path.rename(path.with_suffix(".json"))),
    "range of an issue": lambda path: refusal(reports.main, "issue", SEED, "--range", path),
    "script of an issue": lambda path: refusal(reports.main, "issue", SEED, "--script", path),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_silent_pipe_blocks_no_command(command: Callable[[Path], str], pipe: Path) -> None:
    assert "nothing was written into it" in command(pipe)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_file_without_an_end_is_refused(command: Callable[[Path], str], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    assert "bytes are too many" in command(link)


@pytest.mark.parametrize("error", [ValueError("no verdict"), MemoryError(), RecursionError("deep"), AssertionError()])
def test_an_exception_that_is_no_verdict_never_ends_as_one(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert ended(work) == ExitCode.ERROR
    *_, last = capsys.readouterr().err.splitlines()
    assert last == f"error: harness error: {type(error).__name__}: {error}".strip()
