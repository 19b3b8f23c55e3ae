"""A Python environment for each release: what is run to make one, that it is whole or gone, and that workers use it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from runners import __main__ as command
from runners.processes.pool import Pool
from runners.targets import doctor, environments
from runners.targets.environments import (
    CUDA_NEEDS,
    NotUsable,
    engine_lacks,
    import_path,
    interpreter,
    lacks,
    own_environments,
    worker_environment,
)
from runners.targets.install import Ran
from runners.targets.venv import make_environment
from tests.builders.misbehaving import going

REAL = Target("0.5.13", "cuda")


class Machine:
    """Runs nothing, and puts there what would be there after. ran: the commands."""

    def __init__(self, *, fails: str = "", torch: str = "2.11.0+cu130") -> None:
        self.ran: list[list[str]] = []
        self.fails, self.torch = fails, torch

    def __call__(self, words: Sequence[str]) -> Ran:
        self.ran.append(list(words))
        if "venv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin" / "python").symlink_to(sys.executable)
            return Ran(code=0, output="")
        site = Path(words[0]).parent.parent / "lib" / "python3.12" / "site-packages"
        (site / "sglang").mkdir(parents=True)
        if self.fails:
            return Ran(code=1, output=self.fails)
        (site / "sglang" / "srt").mkdir()
        for name in CUDA_NEEDS:
            info = site / f"{name.replace('-', '_')}-9.dist-info"
            info.mkdir()
            version = self.torch if name == "torch" else "9"
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return Ran(code=0, output="Successfully installed")


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a large disk and a GPU."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
    monkeypatch.setattr(environments, "gpus", lambda: ("H200",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def releases(cache: Path) -> list[str]:
    return [environment.release for environment in own_environments(cache)]


def test_what_is_run(tmp_path: Path) -> None:
    machine = Machine()
    assert make_environment("0.5.13", tmp_path, run=machine)
    place = tmp_path / "environments" / "0.5.13"
    venv, pip = machine.ran
    assert venv == [sys.executable, "-m", "venv", str(place)]
    assert pip[:3] == [str(place / "bin" / "python"), "-m", "pip"]
    assert "install" in pip and pip[-1] == "sglang==0.5.13"
    assert not {"--target", "--no-deps"} & set(pip), "a plain installation, with the torch that the release pins"
    assert releases(tmp_path) == ["0.5.13"]
    assert not make_environment("0.5.13", tmp_path, run=machine)
    assert len(machine.ran) == 2


def test_workers_of_the_real_engine_run_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_environment("0.5.13", tmp_path, run=Machine())
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bin = tmp_path / "environments" / "0.5.13" / "bin"
    assert interpreter(REAL) == bin / "python"
    assert import_path(REAL) == (), "nothing goes in front of what the environment has"
    environment = worker_environment(REAL, device="GPU-7")
    assert environment["PATH"] == f"{bin}:/usr/bin"
    assert environment["PYTHONPATH"] == str(environments.PROJECT)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    # Others do not: the emulated engine needs other versions, another release its own.
    assert interpreter(Target("0.5.13", "emulated")) == interpreter(Target("0.5.11", "cuda")) == Path(sys.executable)
    assert worker_environment(Target("clean", "toy"), device="GPU-7").get("CUDA_VISIBLE_DEVICES") is None


def test_the_pool_starts_its_worker_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_environment("0.5.13", tmp_path, run=Machine())
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    python = tmp_path / "environments" / "0.5.13" / "bin" / "python"
    python.unlink()
    python.write_text('#!/bin/sh\necho "here $CUDA_VISIBLE_DEVICES $MORE $*" >&2\nexit 5\n')
    python.chmod(0o755)
    log = tmp_path / "log"
    with Pool(REAL, log=log, device="3", variables={"MORE": "more"}) as pool:
        assert pool.run(going("well")).ended.what == "the worker ended: exit 5"
    assert log.read_text() == "here 3 more -P -m runners.processes.worker --target 0.5.13/cuda\n"


def test_what_the_environment_lacks(tmp_path: Path) -> None:
    make_environment("0.5.13", tmp_path, run=Machine())
    assert lacks(REAL, tmp_path) == ""
    make_environment("0.5.11", tmp_path, run=Machine(torch="2.11.0+cpu"))
    text = "torch 2.11.0+cpu has no CUDA; to install one that has: make setup-cuda"
    assert lacks(Target("0.5.11", "cuda"), tmp_path) == text
    (environment, _) = own_environments(tmp_path)
    shutil.rmtree(environment.site[0])
    assert "not installed: torch" in engine_lacks("cuda", (), environment.site)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("ERROR: No matching distribution found for torch==2.11.0", "pip knows no torch 2.11.0 that fits Python"),
        ("OSError: [Errno 28] No space left on device", "cannot install sglang 0.5.13: no space left on the disk"),
        ("NewConnectionError", "cannot install sglang 0.5.13: pip reached no package index"),
    ],
)
def test_what_fails_leaves_nothing(output: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotUsable, match=reason):
        make_environment("0.5.13", tmp_path, run=Machine(fails=output))
    assert releases(tmp_path) == []
    assert not (tmp_path / "environments" / "0.5.13").exists()


def test_half_an_environment_is_made_anew(tmp_path: Path) -> None:
    half = tmp_path / "environments" / "0.5.13" / "lib"
    half.mkdir(parents=True)
    (half / "remains").touch()
    assert releases(tmp_path) == []
    assert make_environment("0.5.13", tmp_path, run=Machine())
    assert not (half / "remains").exists()


def test_room_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 30))
    machine = Machine()
    with pytest.raises(NotUsable, match="5120 MB free, 15360 MB needed"):
        make_environment("0.5.13", tmp_path, run=machine)
    assert machine.ran == []


def call(cache: Path, run: Callable[[Sequence[str]], Ran], *words: str) -> int:
    return command.main(["--cache", str(cache), *words], run=run)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(tmp_path, Machine(), "environment", "0.5.13", "0.5.11") == 0
    assert call(tmp_path, Machine(), "environment", "0.5.13") == 0
    assert capsys.readouterr().out == (
        "sglang 0.5.13: installed\nsglang 0.5.11: installed\nsglang 0.5.13: already there\n"
    )
    assert call(tmp_path, Machine(fails="NewConnectionError"), "environment", "0.5.14") == 3
    assert "pip reached no package index" in capsys.readouterr().err
    monkeypatch.setattr(doctor, "gpus", lambda: ("H200",))
    assert call(tmp_path, Machine(), "doctor") == 0
    assert "0.5.13         own environment for cuda: torch 2.11.0+cu130\n" in capsys.readouterr().out
