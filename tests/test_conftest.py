"""--target, the `target` fixture and the skips of conftest.py, as pytest shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conftest
from runners.environments import ADAPTED

PROJECT = Path(__file__).resolve().parent.parent
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
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "EAGLEEYE_CACHE": str(folder / "cache")}
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


def test_without_a_target_every_adapted_release_is_one(pytestconfig: pytest.Config) -> None:
    named = [str(target) for target in conftest.targets(pytestconfig)]
    assert named == pytestconfig.getoption("--target") or named == [f"{release}/emulated" for release in ADAPTED]


def test_a_bad_target_is_a_usage_error(tmp_path: Path) -> None:
    ran = run(tmp_path, "--target", "0.5.13")
    assert ran.returncode == 4
    assert "target '0.5.13': expected RELEASE/ENGINE or PATH@ENGINE" in ran.stderr
    assert "Traceback" not in ran.stderr
