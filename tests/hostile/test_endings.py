"""A command ends soon after SIGTERM, SIGINT or SIGHUP: its record is whole, a line says why, all processes end."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from repro.cases import codec
from repro.cases.codec import Seed
from repro.commands.cli import ended
from repro.ledger.read import read
from repro.traces.campaign import loads
from repro.upstream.running import run as run_to_its_end
from runners import __main__ as runners
from runners.commands import record
from runners.targets.install import run_command
from tests.builders.project import PROJECT, in_front
from tests.builders.tiers import few
from tests.builders.waiting import comes
from tests.repro.test_repro_main import CASE

ENDS_S = 10.0
# Nothing of it comes to an end by itself: a session of this target never answers.
HANGS = "--target hang/toy --timeout 90"
pytestmark = pytest.mark.slow


class Command:
    """A command under test, in a folder of its own. Its processes are told by a variable, which all of them inherit."""

    def __init__(self, folder: Path, line: str, terminal: int | None = None) -> None:
        self.folder, self.tag = folder, uuid.uuid4().hex
        self.seconds: float | None = None  # from its end's cause to its last process's end
        self.process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": in_front(PROJECT), "TAG_OF_A_TEST": self.tag},
            stdin=terminal,
            stdout=terminal or (folder / "stdout").open("w"),
            stderr=terminal or (folder / "stderr").open("w"),
            start_new_session=True,
        )

    def family(self) -> list[int]:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and self._has(entry)]

    def _has(self, process: Path) -> bool:
        try:
            is_zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return not is_zombie and self.tag.encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    def begins(self, processes: int) -> None:
        """Return once it has so many processes: with a fork server, a worker and a session all of them are at work."""
        comes(lambda: len(self.family()) >= processes or self.process.poll() is not None, 60)
        assert len(self.family()) >= processes, self.said()
        time.sleep(0.3)

    def ends(self, number: int) -> None:
        """Send this signal to the command, to no other process: nothing of it is left in time."""
        start = time.monotonic()
        self.process.send_signal(number)
        self.is_gone_in_time(start)

    def is_gone_in_time(self, start: float) -> None:
        end = start + ENDS_S
        assert comes(lambda: self.process.poll() is not None, end - time.monotonic()), self.said()
        assert comes(lambda: not self.family(), end - time.monotonic()), self.said()
        self.seconds = time.monotonic() - start

    def said(self) -> str:
        return "\n".join(path.read_text() for name in ("stdout", "stderr") if (path := self.folder / name).exists())

    def kill(self) -> None:
        for process in self.family():
            os.kill(process, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def commands(record_property: Callable[[str, object], None]) -> Iterator[list[Command]]:
    """The commands that a test has started. How long they took to end goes into the table of faults."""
    started: list[Command] = []
    yield started
    for command in started:
        command.kill()
        if command.seconds is not None:
            record_property("seconds_to_end", command.seconds)


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """Have commands heed SIGHUP, also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("line", "number", "processes"),
    few(
        [
            (f"fuzz run {HANGS} --minutes 5 --ledger l.db --out o", signal.SIGHUP, 4),
            (f"fuzz run {HANGS} --minutes 5 --ledger l.db --out o --workers 2", signal.SIGTERM, 9),
            (f"fuzz hunt {HANGS} --ledger l.db --out o", signal.SIGINT, 4),
        ],
        1,
    ),
)
def test_a_campaign_keeps_its_record(
    line: str, number: int, processes: int, tmp_path: Path, commands: list[Command]
) -> None:
    commands.append(command := Command(tmp_path, line))
    command.begins(processes)
    command.ends(number)
    (campaign,), _ = loads((tmp_path / "o" / "record.json").read_text())
    assert campaign.stopped == "interrupted"
    assert "interrupted" in command.said() and "Traceback" not in command.said()
    (row,) = read(tmp_path / "l.db").campaigns
    assert row.campaign.stopped == "interrupted"


@pytest.mark.parametrize(
    ("line", "number"),
    few(
        [
            (f"repro run case.json {HANGS}", signal.SIGTERM),
            ("repro fidelity case.json --targets hang/toy clean/toy --timeout 90", signal.SIGTERM),
            (f"repro shrink case.json {HANGS}", signal.SIGHUP),
            (f"repro first case.json {HANGS}", signal.SIGINT),
        ],
        2,
    ),
)
def test_a_command_says_that_it_was_interrupted(
    line: str, number: int, tmp_path: Path, commands: list[Command]
) -> None:
    codec.write(tmp_path / "case.json", Seed(case=CASE))
    commands.append(command := Command(tmp_path, line))
    command.begins(4)
    command.ends(number)
    assert command.process.returncode == 3
    (reason,) = (tmp_path / "stderr").read_text().splitlines()
    assert reason.startswith("error: interrupted")


CASES_OF_SGLANG = f"{PROJECT}/repro/seeds/verify-mask-not-padded.json"


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("line", "number", "processes"),
    few(
        [
            ("runners record --out recorded -- sleep 300", signal.SIGTERM, 2),
            ("fuzz check 0.5.23 --out o", signal.SIGTERM, 2),
            ("fuzz mutate --target 0.5.23/emulated --runner draft --backend fa3 --sample 9 --out o", signal.SIGTERM, 3),
            ("fuzz recall --row 23037 --row 27338 --jobs 2 --out o", signal.SIGTERM, 4),
            (f"repro explain {CASES_OF_SGLANG}", signal.SIGHUP, 2),
            (f"repro bisect {CASES_OF_SGLANG}", signal.SIGINT, 2),
        ],
        2,
    ),
)
def test_a_command_on_sglang_ends_too(
    line: str, number: int, processes: int, tmp_path: Path, commands: list[Command]
) -> None:
    commands.append(command := Command(tmp_path, line))
    command.begins(processes)
    command.ends(number)
    assert command.process.returncode == 3 and "Traceback" not in command.said()


def interrupted(work: Callable[[], int], child: Path) -> Path:
    """The child whose number the work writes to this file, once the work has been interrupted."""

    def interrupt() -> None:
        comes(lambda: child.exists() and bool(child.read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    assert ended(work) == 3
    return Path("/proc") / child.read_text().strip()


def is_gone(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_server_that_does_not_end_is_killed_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "PATIENCE_S", 0.3)
    monkeypatch.chdir(tmp_path)
    deaf = "trap '' TERM; sleep 300 & echo $! > child; while true; do sleep 0.1; done"
    words = ["record", "--out", "recorded", "--", "bash", "-c", deaf]
    child = interrupted(lambda: runners.main(words), tmp_path / "child")
    assert "bash ended with -9" in capsys.readouterr().err
    assert comes(lambda: is_gone(child))


def test_the_processes_of_a_command_that_is_bisected_end(tmp_path: Path) -> None:
    words = ["bash", "-c", f"sleep 300 & echo $! > {tmp_path}/child; wait"]
    child = interrupted(lambda: run_to_its_end(words, os.environ, 300.0)[0], tmp_path / "child")
    assert comes(lambda: is_gone(child))


@pytest.mark.parametrize("processes", few([3, 9], 1), ids=["while its workers import", "at work"])
def test_no_process_outlives_a_killed_command(processes: int, tmp_path: Path, commands: list[Command]) -> None:
    commands.append(command := Command(tmp_path, f"fuzz run {HANGS} --minutes 5 --out o --workers 2"))
    command.begins(processes)
    command.ends(signal.SIGKILL)


def test_a_worker_whose_command_is_gone_ends_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        "import sys, time; print('imports', file=sys.stderr, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz", "slot"],
        env={**os.environ, "PYTHONPATH": in_front(tmp_path, PROJECT)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stderr and process.stderr.readline() == b"imports\n"
    process.stdin.write(b"{}\n")  # its job, which it has not read yet
    process.stdin.close()
    assert process.wait(5) == 3


def test_a_terminal_that_is_closed_ends_its_command(tmp_path: Path, commands: list[Command]) -> None:
    ours, terminal = pty.openpty()
    script = f"import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, '-m', *{WORDS!r}])"
    (tmp_path / "on_terminal.py").write_text(script)
    commands.append(command := Command(tmp_path, "on_terminal", terminal))
    os.close(terminal)
    command.begins(4)
    start = time.monotonic()
    os.close(ours)
    command.is_gone_in_time(start)
    (campaign,), _ = loads((tmp_path / "o" / "record.json").read_text())
    assert (campaign.stopped, campaign.error) == ("interrupted", "")


WORDS = f"fuzz run {HANGS} --minutes 5 --out o".split()


@pytest.mark.parametrize("number", few([signal.SIGTERM, signal.SIGHUP], 1))
def test_a_nightly_run_says_why_it_is_red(number: int, tmp_path: Path, commands: list[Command]) -> None:
    (tmp_path / "seeds").mkdir()
    line = f"pytest -q -m nightly -k campaign -n 1 -p no:cacheprovider --rootdir {PROJECT} -c {PROJECT}/pyproject.toml"
    line += f" {PROJECT}/tests/nightly --target hang/toy --ledger l.db --seeds seeds"
    commands.append(command := Command(tmp_path, line))
    command.begins(5)  # pytest, the campaign and its three; xdist hides the environment of its worker
    command.ends(number)
    assert "red because:\n  interrupted: not every job has ended" in command.said()
    history = read(tmp_path / "l.db")
    (campaign,) = history.campaigns
    assert campaign.campaign.stopped == "interrupted"
    assert all(run.ended for run in history.runs)


def test_what_a_command_of_ours_started_ends_with_it(tmp_path: Path, commands: list[Command]) -> None:
    """pip's builds and the processes of compileall are such children."""
    commands.append(command := Command(tmp_path, "tests.hostile.test_endings"))
    command.begins(3)
    command.ends(signal.SIGTERM)
    assert (tmp_path / "stderr").read_text() == "error: interrupted\n"


@pytest.mark.parametrize(
    ("package", "number"),
    [
        ("fuzz", signal.SIGINT),
        ("fuzz", signal.SIGHUP),
        ("repro", signal.SIGTERM),
        ("runners", signal.SIGINT),
        ("reports", signal.SIGTERM),
    ],
)
def test_a_command_that_is_being_imported_says_so_too(package: str, number: int, tmp_path: Path) -> None:
    for module in ("numpy", "rich", "sqlite3"):
        (tmp_path / f"{module}.py").write_text("import time; print('imports', flush=True); time.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", package, "--help"],
        env={**os.environ, "PYTHONPATH": in_front(tmp_path, PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "imports\n"
    process.send_signal(number)
    assert process.communicate(timeout=5) == ("", "error: interrupted\n")
    assert process.returncode == 3


@pytest.mark.parametrize("module", ["worker", "fork_server"])
def test_what_imports_for_a_command_that_is_gone_ends(module: str, tmp_path: Path) -> None:
    (tmp_path / "imports_slowly.py").write_text("import time; print('imports', flush=True); time.sleep(60)\n")
    ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arguments = ["--target", "clean/toy", "--session", "imports_slowly"] if module == "worker" else ["imports_slowly"]
    with closing(ours), control:
        process = subprocess.Popen(
            [sys.executable, "-m", f"runners.processes.{module}", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": in_front(PROJECT, tmp_path)},
            stdin=control.fileno(),
            stderr=subprocess.PIPE,
        )
        # Gone before it imports, the command would end it sooner.
        assert process.stderr and process.stderr.readline() == b"imports\n"
    assert process.wait(5) == 1


if __name__ == "__main__":
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    sys.exit(ended(lambda: run_command([sys.executable, "-c", child]).code))
