"""The import rule: it holds, a planted violation of each part of it is caught, and no command loads torch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.project import PROJECT

PACKAGES = ("fuzz", "oracles", "repro", "reports", "runners")
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

needs_linter = pytest.mark.skipif(not LINT_IMPORTS.exists(), reason="import-linter is not installed: make setup")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project to plant violations in."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(PROJECT / "pyproject.toml", copy)
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def lint(tree: Path) -> tuple[int, str]:
    ran = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@needs_linter
def test_the_import_rule_holds(tree: Path) -> None:
    code, output = lint(tree)
    assert code == 0, output


VIOLATIONS = (
    ("repro/planted_1.py", "import oracles.catalogue"),
    ("repro/planted_2.py", "import hypothesis"),
    ("fuzz/planted_3.py", "from runners import pool"),
    ("fuzz/planted_4.py", "import pandas"),
    ("fuzz/planted_5.py", "from rich.console import Console"),
    ("oracles/planted_6.py", "from runners.recording.observer import Watch"),
    ("oracles/planted_7.py", "import time"),
    ("reports/planted_8.py", "import oracles.catalogue"),
    ("runners/planted_9.py", "import fuzz.campaign"),
    ("runners/planted_10.py", "import torch"),
    ("runners/planted_11.py", "from runners.sessions.open import open_session"),
    ("runners/engines/planted_12.py", "import sglang.srt.server_args"),
    ("runners/planted_13/__main__.py", "import torch"),
    ("repro/planted_14.py", "from repro.cases.case import Case"),
    ("runners/engines/planted_15.py", "import torch"),
    ("fuzz/planted_16.py", "import fuzz.commands.run"),
    ("fuzz/cluster/planted_17.py", "import ray"),
    ("runners/planted_18.py", "import repro.commands.shrink"),
    ("runners/releases/options/planted_19.py", "from runners.releases.workers.verifier import verifier"),
    ("runners/sessions/observe/planted_20.py", "from runners.sessions.step import Step"),
)
ALLOWED = {"repro.planted_14", "runners.engines.planted_15"}


@pytest.mark.slow
@needs_linter
def test_planted_violations_are_caught(tree: Path) -> None:
    """All in one run of the linter, each in a module of its own, so that each has to be named."""
    for file, line in VIOLATIONS:
        path = tree / file
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(f"{line}\n")
    code, output = lint(tree)
    assert code == 1
    named = {file.removesuffix(".py").replace("/", ".") for file, _ in VIOLATIONS}
    caught = {name for name in named if re.search(rf"{re.escape(name)}\b", output)}
    assert named - caught == ALLOWED, output


@pytest.mark.slow
def test_no_command_loads_what_may_crash() -> None:
    """Not only in its text: the running process that must not die has neither torch nor sglang in it."""
    commands = sorted(path.parent.name for path in PROJECT.glob("*/__main__.py"))
    assert commands
    lines = [f"import {name}.__main__" for name in commands]
    lines += ["import sys", "print({'torch', 'triton', 'sglang'} & set(sys.modules))"]
    words = [sys.executable, "-c", "\n".join(lines)]
    ran = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("set()\n", "")
