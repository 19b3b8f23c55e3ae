"""Targets: a release is whole or not there, whatever interrupts its installing; and each lack has its one line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from repro.cases.releases import release_order
from runners.targets import environments
from runners.targets.environments import (
    NotUsable,
    engine_lacks,
    import_path,
    installed,
    lacks,
    worker_environment,
)
from runners.targets.install import Pip, Ran, damage, install, run_pip
from tests.builders.project import PROJECT


def target_of(arguments: Sequence[str]) -> Path:
    return Path(arguments[arguments.index("--target") + 1])


def good_pip(arguments: Sequence[str]) -> Ran:
    """Puts there what pip would put there, in small."""
    package = target_of(arguments) / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "version.py").write_text(arguments[-1])
    return Ran(code=0, output="Successfully installed")


def failing_pip(output: str) -> Pip:
    def pip(arguments: Sequence[str]) -> Ran:
        half = target_of(arguments) / "sglang"
        half.mkdir(parents=True)
        (half / "version.py").write_text("half")
        return Ran(code=1, output=output)

    return pip


def releases(cache: Path) -> list[str]:
    return [release.release for release in installed(cache)]


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "targets").iterdir() if path.name != ".lock")


def test_an_installed_release_is_found_and_not_installed_again(tmp_path: Path) -> None:
    assert install("0.5.13", tmp_path, pip=good_pip)
    assert install("0.5.10.post1", tmp_path, pip=good_pip)
    assert releases(tmp_path) == ["0.5.10.post1", "0.5.13"]
    assert not install("0.5.13", tmp_path, pip=failing_pip("not asked"))
    assert import_path(Target("0.5.13", "emulated"), tmp_path) == (tmp_path / "targets" / "0.5.13",)
    assert damage(tmp_path / "targets" / "0.5.13") == ""


def test_nothing_has_to_be_writable_where_all_is_there(tmp_path: Path) -> None:
    install("0.5.13", tmp_path, pip=good_pip)
    (tmp_path / "targets" / ".lock").unlink()
    (tmp_path / "targets" / ".lock").mkdir()  # opening it would fail, for root as well
    assert not install("0.5.13", tmp_path, pip=good_pip)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement sglang==0.5.99 "
            "(from versions: 0.1.1, 0.5.23)\n"
            "ERROR: No matching distribution found for sglang==0.5.99",
            "pip knows no sglang 0.5.99 that fits Python {python}; the newest that it offers is 0.5.23",
        ),
        (
            "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError(': Failed to establish "
            "a new connection: [Errno 111] Connection refused')': /simple/sglang/\n"
            "ERROR: Could not find a version that satisfies the requirement sglang==0.5.99 (from versions: none)\n"
            "ERROR: No matching distribution found for sglang==0.5.99",
            "cannot install sglang 0.5.99: pip reached no package index (is there a network?)",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "cannot install sglang 0.5.99: no space left on the disk of {targets} or of pip's temporary files",
        ),
        (
            "/usr/bin/python3: No module named pip",
            f"cannot install sglang 0.5.99: {sys.executable} has no pip; to make an environment: make setup",
        ),
        ("ERROR: bad wheel\n", "cannot install sglang 0.5.99: pip says: bad wheel"),
        ("", "cannot install sglang 0.5.99: pip says: it printed nothing"),
    ],
)
def test_what_pip_says_becomes_one_line_and_nothing_is_left(tmp_path: Path, output: str, message: str) -> None:
    with pytest.raises(NotUsable) as error:
        install("0.5.99", tmp_path, pip=failing_pip(output))
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert str(error.value) == message.format(python=python, targets=tmp_path / "targets")
    assert (releases(tmp_path), leftovers(tmp_path)) == ([], [])


def test_a_full_disk_is_noticed_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20 << 20))
    with pytest.raises(NotUsable, match=r"not enough disk space in .*: 20 MB free, 150 MB needed"):
        install("0.5.13", tmp_path, pip=good_pip)
    assert leftovers(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotUsable, match=r"cannot install sglang 0\.5\.13 in .*: Not a directory"):
        install("0.5.13", tmp_path / "file" / "cache", pip=good_pip)


def test_a_package_without_sglang_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotUsable, match="it has no sglang/srt"):
        install("0.5.13", tmp_path, pip=lambda arguments: Ran(code=0, output=""))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("text", ["../x", "", "0.5.13/../..", "latest", "-rx", "0.5.13 ", "v0.5.13", "0.5.13\n"])
def test_only_version_numbers_are_releases(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotUsable, match="is not a release of sglang"):
        install(text, tmp_path, pip=good_pip)
    assert not (tmp_path / "targets").exists()


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def pip(arguments: Sequence[str]) -> Ran:
        good_pip(arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install("0.5.13", tmp_path, pip=pip)
    assert (releases(tmp_path), leftovers(tmp_path)) == ([], [])


@pytest.mark.slow
def test_a_killed_install_is_not_taken_for_whole_and_is_cleaned_up(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from runners.targets.install import install
        from tests.runners.targets.test_environments import good_pip
        def pip(arguments):
            good_pip(arguments)
            print("halfway", flush=True)
            time.sleep(600)
        install("0.5.13", Path({str(tmp_path)!r}), pip=pip)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"halfway\n"
        process.send_signal(signal.SIGKILL)
    assert releases(tmp_path) == []
    assert leftovers(tmp_path) == [".part-0.5.13"]
    assert install("0.5.11", tmp_path, pip=good_pip)
    assert leftovers(tmp_path) == ["0.5.11"]


def test_a_directory_without_the_marker_is_replaced(tmp_path: Path) -> None:
    """Somebody's copy, or what an older tool left half done."""
    good_pip(["--target", str(tmp_path / "targets" / "0.5.13"), "half"])
    assert releases(tmp_path) == []
    assert install("0.5.13", tmp_path, pip=good_pip)
    assert (tmp_path / "targets" / "0.5.13" / "sglang" / "version.py").read_text() == "sglang==0.5.13"


def test_two_installs_at_once_are_one(tmp_path: Path) -> None:
    calls: list[str] = []
    lines: list[str] = []
    results: list[bool] = []

    def slow_pip(arguments: Sequence[str]) -> Ran:
        calls.append(arguments[-1])
        end = time.monotonic() + 10
        while not lines and time.monotonic() < end:
            time.sleep(0.01)  # until the other one is seen to wait
        return good_pip(arguments)

    def one() -> None:
        results.append(install("0.5.13", tmp_path, pip=slow_pip, say=lines.append))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [False, True]
    assert calls == ["sglang==0.5.13"]
    assert lines == [f"waiting for another install in {tmp_path / 'targets'}"]


def wheel(folder: Path, release: str) -> None:
    """A tiny but real wheel."""
    info = f"sglang-{release}.dist-info"
    with zipfile.ZipFile(folder / f"sglang-{release}-py3-none-any.whl", "w") as file:
        file.writestr("sglang/srt/__init__.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {release}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def only_local_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path, "0.5.10")
    return tmp_path


@pytest.mark.slow
def test_the_real_pip_installs_and_refuses(only_local_wheels: Path) -> None:
    cache = only_local_wheels / "cache"
    assert install("0.5.10", cache, pip=run_pip)
    assert releases(cache) == ["0.5.10"]
    with pytest.raises(NotUsable, match=r"pip knows no sglang 0\.5\.99 .*; the newest that it offers is 0\.5\.10"):
        install("0.5.99", cache, pip=run_pip)


@pytest.mark.slow
def test_the_real_pip_without_a_network(only_local_wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    with pytest.raises(NotUsable, match="pip reached no package index"):
        install("0.5.10", only_local_wheels / "cache", pip=run_pip)


def test_a_file_that_went_missing_is_damage(tmp_path: Path) -> None:
    install("0.5.13", tmp_path, pip=good_pip)
    path = tmp_path / "targets" / "0.5.13"
    (path / "sglang" / "__pycache__").mkdir()
    (path / "sglang" / "__pycache__" / "version.pyc").write_text("compiled by an import")
    assert damage(path) == ""
    (path / "sglang" / "version.py").unlink()
    assert damage(path) == "1 files of 0 bytes, but 2 of 14 were installed"


@pytest.mark.parametrize("where", ["targets", "."])
def test_an_unpacked_bundle_counts_with_its_base(tmp_path: Path, where: str) -> None:
    parent = tmp_path / where
    (parent / "sglang-0.5.13" / "sglang" / "srt").mkdir(parents=True)
    (parent / "sglang-0.5.11.part" / "sglang" / "srt").mkdir(parents=True)
    (parent / "base").mkdir()
    assert releases(tmp_path) == ["0.5.13"]
    path = [parent.resolve() / "sglang-0.5.13", parent.resolve() / "base"]
    assert [folder.resolve() for folder in import_path(Target("0.5.13", "cuda"), tmp_path)] == path


def test_the_worker_finds_the_release_first_then_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("0.5.13", tmp_path, pip=good_pip)
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = worker_environment(Target("0.5.13", "emulated"))
    assert environment["PYTHONPATH"].split(":") == [str(tmp_path / "targets" / "0.5.13"), str(PROJECT), "/elsewhere"]
    assert (environment["TRITON_INTERPRET"], environment["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    environment = worker_environment(Target("0.5.13", "cuda"))
    assert "TRITON_INTERPRET" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "3", "who shares a machine says which GPU is whose"
    assert worker_environment(Target("clean", "toy"))["PYTHONPATH"].split(":") == [str(PROJECT), "/elsewhere"]


def test_compiled_kernels_are_kept_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("0.5.13", tmp_path, pip=good_pip)
    target = Target("0.5.13", "cuda")
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "EAGLEEYE_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    assert worker_environment(target, tmp_path)["TRITON_CACHE_DIR"] == str(tmp_path / "kernels" / "triton")
    monkeypatch.setenv("EAGLEEYE_KERNELS", str(tmp_path / "mine"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/set/by/hand")
    environment = worker_environment(target, tmp_path)
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "mine" / "triton")
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/set/by/hand"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "TRITON_CACHE_DIR" not in worker_environment(target, tmp_path), "compilers can write in their own places"


def test_a_checkout_is_named_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    right = Target(str(tmp_path / "python"), "emulated")
    assert import_path(right) == (tmp_path / "python",)
    with pytest.raises(NotUsable) as error:
        import_path(Target(str(tmp_path), "emulated"))
    assert str(error.value) == (
        f"{tmp_path} is not an import path of sglang: it has no sglang/srt; did you mean {tmp_path / 'python'}?"
    )


def test_releases_are_ordered_by_number() -> None:
    shuffled = ["0.5.13.post1", "0.5.9", "0.5.14", "0.5.13", "0.5.10.post1"]
    assert sorted(shuffled, key=release_order) == ["0.5.9", "0.5.10.post1", "0.5.13", "0.5.13.post1", "0.5.14"]
    assert list(ADAPTED) == sorted(ADAPTED, key=release_order)


@pytest.mark.parametrize(
    ("engine", "packages", "gpu", "message"),
    [
        ("emulated", {"torch": "2.13.0+cpu", "triton": "3.6.0", "numpy": "2.3.5"}, (), ""),
        (
            "emulated",
            {"triton": "3.6.0", "numpy": "2.3.5"},
            (),
            "not installed: torch; to install them: make setup",
        ),
        (
            "emulated",
            {"torch": "2.13.0", "triton": "3.6.0", "numpy": "2.4.1"},
            (),
            "numpy 2.4.1 breaks Triton's interpreter (2.3 works); to install the pinned one: make setup",
        ),
        ("cuda", {"torch": "2.11.0+cu130"}, (), "there is no NVIDIA GPU on this machine (nvidia-smi shows none)"),
        ("cuda", {"torch": "2.11.0+cu130"}, ("H200",), ""),
        (
            "cuda",
            {"torch": "2.11.0+cpu"},
            ("H200",),
            "torch 2.11.0+cpu has no CUDA; to install one that has: make setup-cuda",
        ),
        ("toy", {}, (), ""),
    ],
)
def test_an_engine_says_what_it_lacks(
    engine: str, packages: dict[str, str], gpu: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"torch", "numpy"}
    rest = {name: "1" for name in (*environments.EMULATED_NEEDS, *environments.CUDA_NEEDS) if name not in named}
    monkeypatch.setattr(environments, "versions", lambda names, path, behind: rest | packages)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environments, "gpus", lambda: gpu)
    assert engine_lacks(engine) == message


def test_a_target_lacks_its_release_first(tmp_path: Path) -> None:
    message = "sglang 0.5.13 is not installed; to install it: python -m runners install 0.5.13"
    assert lacks(Target("0.5.13", "emulated"), tmp_path) == message
    assert lacks(Target("clean", "toy"), tmp_path) == ""
