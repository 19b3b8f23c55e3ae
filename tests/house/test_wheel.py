"""A wheel is built, and works in an environment of its own, where its packages meet no others of their names."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from repro.cases.release_list import NEWEST
from repro.commands.verbs import spelled
from tests.builders.project import PROJECT

NAMES = ("fuzz", "oracles", "repro", "reports", "runners")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", *words], check=True, capture_output=True)
    (path,) = folder.glob("eagleeye-*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel. What the wheel needs is taken from this one's site-packages, behind its own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    install = ["--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", *install], check=True, capture_output=True)
    # A path file within a path file is not read: this checkout, which is installed there, is not found.
    (site / "needs.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    return folder


def run(environment: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from eagleeye.console import main; sys.exit(main())"
    command = [str(environment / "bin" / "python"), "-c", code, *words]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=environment, env=variables, capture_output=True, text=True)


def test_it_has_all_that_a_checkout_runs_in_one_folder(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        scripts, plugins = archive.read(entry).decode().strip().split("\n\n")
    assert scripts.split("\n") == ["[console_scripts]", "eagleeye = eagleeye.console:main"]
    assert plugins.split("\n") == ["[pytest11]", "eagleeye = eagleeye.pytest_plugin"]
    assert {name.split("/")[0] for name in files} == {"eagleeye"}
    tracked = subprocess.run(["git", "ls-files", *NAMES], cwd=PROJECT, check=True, capture_output=True, text=True)
    public = "fuzz/public/"
    paths = {
        name.removeprefix(public) if public in name else f"eagleeye/home/{name}" for name in tracked.stdout.split()
    }
    assert {"eagleeye/api.py", "eagleeye/home/fuzz/campaign.py"} < paths == files


@pytest.mark.slow
def test_its_packages_have_no_names_in_an_environment(environment: Path) -> None:
    code = f"from importlib.util import find_spec; print([name for name in {NAMES!r} if find_spec(name)])"
    python = environment / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], cwd=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_a_campaign_runs_beside_packages_of_the_same_names(environment: Path) -> None:
    for name in NAMES:
        (environment / name).mkdir()
        (environment / name / "__init__.py").write_text("raise ImportError('the package of somebody else')")
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert run(environment, "--version").stdout == f"eagleeye {version}\n"
    done = run(environment, "run", "--target", "stale_padding/toy", "--cases", "6", "--workers", "2", "--out", "out")
    assert done.returncode == 1 and "1 finding" in done.stdout, done.stderr


@pytest.mark.slow
def test_its_texts_name_commands_that_it_has(environment: Path) -> None:
    refused = run(environment, "replay", "multi-layer-stale-padding", "--target", "0.0.1/emulated").stderr
    assert "eagleeye install 0.0.1" in refused and "python -m" not in refused
    assert "python -m" not in run(environment, "doctor").stdout


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_seed_that_comes_with_it_fails_on_sglang(environment: Path) -> None:
    done = run(environment, "replay", "multi-layer-stale-padding", "--target", f"{NEWEST}/emulated")
    assert done.returncode == 1, done.stderr
    assert "req_pool_indices[1,0] is 2, expected 0 (slot0_padding)" in done.stdout


def test_texts_are_spelled_as_they_can_be_typed() -> None:
    text = "make setup, and python -m runners install 0.5.23, then python -m repro run S.json"
    assert spelled(text, installed=False) == text
    typed = "pip install 'eagleeye[emulated]', and eagleeye install 0.5.23, then eagleeye replay S.json"
    assert spelled(text, installed=True) == typed
