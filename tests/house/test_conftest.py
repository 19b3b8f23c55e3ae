"""--target, the `target` fixture and the skips of conftest.py, as pytest shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conftest
from repro.cases.case import Target
from repro.cases.release_list import ADAPTED, USES
from runners.targets.devices import Seats, visible
from runners.targets.environments import CUDA_NEEDS, Installed, ReleaseVenv
from tests.builders.project import PROJECT, in_front

pytestmark = pytest.mark.slow

TESTS = """
import pytest

def test_of_a_target(target):
    assert str(target)

@pytest.mark.emulated("0.0.1", "0.0.2")
def test_of_two_releases():
    raise AssertionError("needs what is not there")

def test_of_nothing():
    pass
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest on TESTS, with no release installed."""
    (folder / "test_planted.py").write_text(TESTS)
    # Only the plugins that are asked for: loading all that the environment brings along takes longer than the tests.
    environment = {**os.environ, "PYTHONPATH": in_front(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["EAGLEEYE_CACHE"] = str(folder / "cache")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-v", "-rs", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_what_is_not_installed_is_skipped_and_says_what_helps(tmp_path: Path) -> None:
    output = run(tmp_path, "--target", "0.0.3/emulated", "--target", "clean/toy").stdout
    assert "test_of_a_target[clean/toy] PASSED" in output
    assert "test_of_a_target[0.0.3/emulated] SKIPPED" in output
    assert "sglang 0.0.3 is not installed; to install it: python -m runners install 0.0.3" in output
    assert "2 passed, 2 skipped" in output
    order = [line.split("::")[1].split()[0] for line in output.splitlines() if "::" in line and "%" in line]
    assert order[-2:] == ["test_of_a_target[0.0.3/emulated]", "test_of_two_releases"], "what needs sglang comes last"


def test_a_target_may_bring_what_its_engine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bundle, or an environment for each release, the interpreter that pytest runs in has no kernels."""
    usable, other = Target("0.5.13", "cuda"), Target("0.5.12", "cuda")
    targets = [other, usable]
    monkeypatch.setattr(conftest, "targets", lambda config: targets)
    monkeypatch.setattr(conftest, "lacking", lambda what: "" if what == usable else f"{what} lacks something")
    job, engine = (item_of(**params) for params in ({"job": (usable, "draft", "triton")}, {}))
    assert (conftest.missing(job), conftest.missing(engine)) == ("", "")
    targets = [other]
    assert conftest.missing(engine) == "cuda lacks something"
    assert conftest.missing(item_of(job=(other, "draft", "triton"))) == "0.5.12/cuda lacks something"


def item_of(**params: Any) -> Any:
    """A test with these parameters and the mark of the cuda engine."""
    marks = {"cuda": [pytest.mark.cuda.mark]}
    return SimpleNamespace(
        config=None, callspec=SimpleNamespace(params=params), iter_markers=lambda name: marks.get(name, [])
    )


def test_without_a_target_some_adapted_releases_are(pytestconfig: pytest.Config) -> None:
    named = [str(target) for target in conftest.targets(pytestconfig)]
    assert named == pytestconfig.getoption("--target") or named == [f"{release}/emulated" for release in USES["test"]]
    assert set(USES["test"]) <= set(ADAPTED) and ADAPTED[-1] in USES["test"]


def test_a_bad_target_is_a_usage_error(tmp_path: Path) -> None:
    ran = run(tmp_path, "--target", "0.5.13")
    assert ran.returncode == 4
    assert "target '0.5.13': expected RELEASE/ENGINE or PATH@ENGINE" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_several_targets_in_one_word(tmp_path: Path) -> None:
    output = run(tmp_path, "--target", "clean/toy, tie/toy", "--target", "0.0.3/emulated").stdout
    assert "test_of_a_target[clean/toy] PASSED" in output and "test_of_a_target[tie/toy] PASSED" in output
    assert "test_of_a_target[0.0.3/emulated] SKIPPED" in output


def test_all_installed_releases_in_one_word(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = [Installed(release=release, path=Path()) for release in ("0.5.9", "0.5.13", "0.5.13.post1", "0.5.10")]
    monkeypatch.setattr(conftest, "installed", lambda: releases)
    monkeypatch.setattr(conftest, "own_environments", lambda: [ReleaseVenv(release="0.5.11", path=Path())])
    emulated = ["0.5.9/emulated", "0.5.10/emulated", "0.5.13/emulated", "0.5.13.post1/emulated"]
    assert [str(target) for target in conftest.meant("installed/emulated")] == emulated
    assert "0.5.11/cuda" in [str(target) for target in conftest.meant("installed/cuda")]
    assert [str(target) for target in conftest.meant("0.5.13/cuda")] == ["0.5.13/cuda"]


@pytest.mark.parametrize("name", ["installed/emulated", "installed/cuda", "installed/toy", "installed/cude"])
def test_all_of_none_is_a_usage_error(name: str, tmp_path: Path) -> None:
    ran = run(tmp_path, "--target", name)
    assert ran.returncode == 4 and f"target '{name}': " in ran.stderr and "Traceback" not in ran.stderr


def test_tests_write_into_nobodys_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLEEYE_LEDGER", str(tmp_path / "l.db"))
    (tmp_path / "test_more.py").write_text(
        "import os\ndef test_it():\n    assert 'EAGLEEYE_LEDGER' not in os.environ\n"
    )
    assert "test_it PASSED" in run(tmp_path, "--target", "clean/toy").stdout


# GPUs: a driver's tool that shows four of them, and packages that are there by name only.
ON_GPUS = """
import os, signal, time
import pytest
from pathlib import Path

@pytest.mark.cuda
@pytest.mark.parametrize("number", range(4))
def test_on_a_gpu(number):
    device, worker = os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("PYTEST_XDIST_WORKER", "alone")
    Path(f"saw-{number}").write_text(f"{worker} {device}")
    time.sleep(0.2)  # so that no worker does them all

@pytest.mark.skipif("CRASHES" not in os.environ, reason="no crash asked for")
@pytest.mark.parametrize("number", range(2))
def test_that_dies(number):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def on_gpus(folder: Path, listed: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """pytest on ON_GPUS, on a machine of four GPUs as far as anyone can tell."""
    (folder / "test_planted.py").write_text(ON_GPUS)
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nfor gpu in 1 2 3 4; do echo NVIDIA H200; done\n")
    tool.chmod(0o755)
    for name in CUDA_NEEDS:
        info = folder / "packages" / f"{name.replace('-', '_')}-9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    # These tests may themselves run under xdist, and the pytest that is started here is none of its workers.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment = {
        **inherited,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": in_front(PROJECT, folder / "packages"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CUDA_VISIBLE_DEVICES": listed,
        **more,
    }
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "conftest", "-p", "no:cacheprovider", "-rs", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def devices_of_workers(folder: Path) -> dict[str, set[str]]:
    """The devices that each worker saw in the tests that ran."""
    seen: dict[str, set[str]] = {}
    for path in folder.glob("saw-*"):
        worker, device = path.read_text().split(" ", 1)
        seen.setdefault(worker, set()).add(device)
    return seen


def test_each_worker_owns_one_gpu_of_the_callers_list_and_takes_over_a_dead_ones(tmp_path: Path) -> None:
    ran = on_gpus(tmp_path, "3,GPU-abc", "-n", "2", CRASHES="yes")
    assert "2 failed, 4 passed" in ran.stdout, "a crash costs its own test alone"
    seen = devices_of_workers(tmp_path)
    assert all(len(devices) == 1 for devices in seen.values())
    assert set().union(*seen.values()) <= {"3", "GPU-abc"}


def test_without_xdist_nothing_is_changed(tmp_path: Path) -> None:
    assert on_gpus(tmp_path, "1,2", "-m", "cuda").returncode == 0
    assert devices_of_workers(tmp_path) == {"alone": {"1,2"}}


def test_more_workers_than_gpus_is_a_usage_error(tmp_path: Path) -> None:
    ran = on_gpus(tmp_path, "0,1", "-m", "cuda", "-n", "3")
    assert ran.returncode == 4
    assert "3 workers need a place on a GPU each, and there are 2: -n 2, or more of them on each GPU" in ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


def test_xdist_does_not_give_up_after_some_crashes(pytestconfig: pytest.Config) -> None:
    limit = getattr(pytestconfig.option, "maxworkerrestart", conftest.RESTARTS_MAX)
    assert int(limit) >= 100 or "--max-worker-restart" in str(pytestconfig.invocation_params.args)


def test_a_list_that_names_no_gpu_skips_with_the_reason(tmp_path: Path) -> None:
    ran = on_gpus(tmp_path, "7", "-m", "cuda")
    assert ran.returncode == 0
    assert "CUDA_VISIBLE_DEVICES='7' names no GPU of this machine" in ran.stdout
    assert not devices_of_workers(tmp_path)


def test_without_a_gpu_the_tests_skip_with_the_reason(tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    (tmp_path / "test_planted.py").write_text(ON_GPUS)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-rs", "-m", "cuda"]
    environment = {**os.environ, "PYTHONPATH": in_front(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert "there is no NVIDIA GPU on this machine (nvidia-smi shows none)" in ran.stdout
    assert "4 skipped" in ran.stdout


def planned(listed: str, *words: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the configuration of a pytest that was called with these words, on a machine of four GPUs."""
    monkeypatch.setattr(conftest, "gpus", lambda: ("H200",) * 4)
    monkeypatch.setattr(conftest, "visible", lambda count: visible(count, {"CUDA_VISIBLE_DEVICES": listed}))
    values = {"--target": [], "--workers-per-gpu": 1, "markexpr": ""}
    values |= dict(zip(words[::2], (int(word) if word.isdecimal() else word for word in words[1::2]), strict=True))
    return SimpleNamespace(stash=pytest.Stash(), getoption=values.__getitem__)


def test_automatically_as_many_workers_as_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(listed: str, *words: str) -> int | None:
        return conftest.pytest_xdist_auto_num_workers(planned(listed, *words, monkeypatch=monkeypatch))

    assert workers("1,0,-1,2", "markexpr", "cuda") == 2, "CUDA ends its list at -1"
    assert workers("1,0", "markexpr", "cuda", "--workers-per-gpu", "3") == 6
    assert workers("1,0", "markexpr", "not cuda") is None
    assert workers("", "markexpr", "cuda") is None


def test_a_worker_that_found_no_place_uses_nobodys_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = planned("5,3", monkeypatch=monkeypatch)
    config.stash[conftest.SEATS] = Seats(("3",))
    nodes = [SimpleNamespace(config=config, workerinput={}) for _ in range(3)]
    for node in nodes[:2]:
        conftest.pytest_configure_node(node)
    assert [node.workerinput["gpu"] for node in nodes[:2]] == ["3", ""]

    def item(node: object, *marks: str) -> Any:
        return SimpleNamespace(config=node, iter_markers=lambda name: [m for m in marks if m == name])

    conftest.pytest_runtest_setup(item(nodes[0], "cuda"))
    conftest.pytest_runtest_setup(item(nodes[1], "emulated"))
    with pytest.raises(pytest.fail.Exception, match="this xdist worker has no GPU of its own: fewer workers"):
        conftest.pytest_runtest_setup(item(nodes[1], "cuda"))
    for node in nodes[1::-1]:
        conftest.pytest_testnodedown(node, None)
    conftest.pytest_configure_node(nodes[2])
    assert nodes[2].workerinput["gpu"] == "3"
