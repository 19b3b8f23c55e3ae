"""python -m runners: what it prints, where it prints it, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from repro.cases.release_list import ADAPTED
from runners import __main__ as command
from runners.targets import doctor
from runners.targets.install import Ran
from tests.builders.project import PROJECT

pytestmark = pytest.mark.slow

# From the words of a command to its exit code and what it said on stdout and stderr.
Call = Callable[..., tuple[int, str, str]]


def pip(arguments: Sequence[str]) -> Ran:
    """Knows every release but 0.5.99."""
    if arguments[-1] == "sglang==0.5.99":
        return Ran(code=1, output="ERROR: No matching distribution found for sglang==0.5.99")
    package = Path(arguments[arguments.index("--target") + 1]) / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "weights.bin").write_bytes(bytes(3 << 20))
    return Ran(code=0, output="")


@pytest.fixture
def runners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*words: str) -> tuple[int, str, str]:
        code = command.main(["--cache", str(tmp_path), *words], pip=pip)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_install_then_list_then_path(runners: Call, tmp_path: Path) -> None:
    assert runners("list") == (0, f"nothing is installed in {tmp_path / 'targets'}\n", "")
    assert runners("install", "0.5.13", "0.4.9") == (0, "sglang 0.5.13: installed\nsglang 0.4.9: installed\n", "")
    assert runners("install", "0.5.13", "0.5.11", "0.5.11") == (
        0,
        "sglang 0.5.13: already there\nsglang 0.5.11: installed\n",
        "",
    )
    code, out, err = runners("list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines] == [[name, "3", "MB"] for name in ("0.4.9", "0.5.11", "0.5.13")]
    assert "no adapter for this release" in lines[0] and "no adapter" not in lines[1]
    assert runners("path", "0.5.13") == (0, f"{tmp_path / 'targets' / '0.5.13'}\n", "")


def test_facts_name_the_releases_of_a_use(runners: Call) -> None:
    assert runners("facts", "--releases", "adapted") == (0, " ".join(ADAPTED) + "\n", "")
    error = "error: unrecognized arguments: test (see python -m runners --help)\n"
    assert runners("facts", "--releases", "adapted", "test") == (3, "", error)


def test_one_bad_release_does_not_keep_the_others_away(runners: Call) -> None:
    code, out, err = runners("install", "0.5.11", "0.5.99", "0.5.13")
    assert (code, out) == (3, "sglang 0.5.11: installed\nsglang 0.5.13: installed\n")
    assert err.startswith("error: pip knows no sglang 0.5.99 that fits Python ") and err.count("\n") == 1


def test_what_is_no_release_is_refused_before_anything_is_fetched(runners: Call) -> None:
    code, out, err = runners("install", "0.5.13", "../../etc")
    assert (code, out) == (3, "")
    assert err == "error: '../../etc' is not a release of sglang: expected a version number such as 0.5.10.post1\n"
    assert "nothing is installed" in runners("list")[1]


def test_the_path_of_what_is_not_there(runners: Call) -> None:
    text = "error: sglang 0.5.11 is not installed; to install it: python -m runners install 0.5.11\n"
    assert runners("path", "0.5.11") == (3, "", text)


def test_the_doctor_names_what_is_missing_and_what_helps(
    runners: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "gpus", tuple)
    monkeypatch.setattr(doctor, "engine_lacks", lambda engine, path: "" if engine == "emulated" else "there is no GPU")
    code, out, _ = runners("doctor")
    assert code == 3, "nothing can be run yet"
    assert f"to install them: python -m runners install {' '.join(ADAPTED)}\n" in out
    assert "missing: cuda engine: there is no GPU\n" in out
    assert "gpu       none\n" in out
    runners("install", *ADAPTED)
    code, out, _ = runners("doctor")
    assert code == 0
    assert "0.5.13         usable with: emulated\n" in out
    assert "python -m runners install" not in out
    (tmp_path / "targets" / "0.5.13" / "sglang" / "srt" / "weights.bin").unlink()
    assert "0.5.13         DAMAGED: 0 files of 0 bytes" in runners("doctor")[1]


def test_the_doctor_on_a_machine_without_sglangs_needs(runners: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "engine_lacks", lambda engine, path: "not installed: torch; to install them: make setup"
    )
    runners("install", *ADAPTED)
    code, out, _ = runners("doctor")
    assert code == 3
    assert "missing: emulated engine: not installed: torch; to install them: make setup\n" in out
    assert "0.5.13         usable with: no engine here\n" in out


@pytest.mark.parametrize(
    "words", [["install"], ["fly"], [], ["path"], ["install", "--fast", "0.5.13"], ["path", "1", "2"]]
)
def test_bad_arguments_are_one_line(runners: Call, words: list[str]) -> None:
    code, out, error = runners(*words)
    assert (code, out) == (3, "")
    assert error.startswith("error: ") and error.count("\n") == 1


def test_the_command_itself(tmp_path: Path) -> None:
    """A user's call answers, and loads neither torch nor pandas for it."""
    words = [sys.executable, "-X", "importtime", "-m", "runners", "--cache", str(tmp_path), "list"]
    ran = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"nothing is installed in {tmp_path / 'targets'}\n")
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in ran.stderr.splitlines()}
    assert "runners" in loaded
    assert loaded.isdisjoint({"torch", "pandas", "sglang", "hypothesis"})


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m runners --cache {tmp_path} doctor | true; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr
    assert ran.stdout.strip() in ("0", "3")
