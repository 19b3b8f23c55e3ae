"""House rules that a linter does not know, on every module of ours; two of them also on tests."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.project import PROJECT

# In one process, which parses each file once.
pytestmark = pytest.mark.xdist_group("tidy")

PACKAGES = ("fuzz", "oracles", "repro", "reports", "runners")
MODULES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
TESTS = sorted([PROJECT / "conftest.py", *(PROJECT / "tests").rglob("*.py")])
LINES_MAX = 400
# Names that say nothing: whatever nobody knows where to put would end up there.
VAGUE = {"util", "utils", "helper", "helpers", "common", "base", "manager", "managers", "misc", "shared", "core", "lib"}

# What is wrong with a module, in words.
Check = Callable[[Path], list[str]]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def offences(check: Check, paths: list[Path]) -> list[str]:
    return [f"{path}: {text}" for path in paths for text in check(path)]


def too_long(path: Path) -> list[str]:
    length = len(path.read_text().splitlines())
    return [f"{length} lines, {LINES_MAX} at most"] if length > LINES_MAX else []


def opens_without_saying(path: Path) -> list[str]:
    text = ast.get_docstring(parsed(path))
    return [] if text else ["does not open with what it is for"]


def more_than_a_docstring(path: Path) -> list[str]:
    if path.name != "__init__.py":
        return []
    return [f"line {node.lineno} is code" for node in parsed(path).body[1:]]


def vague(path: Path) -> list[str]:
    words = set(path.stem.lower().split("_")) | {path.parent.name}
    return [f"the name says nothing: {word}" for word in sorted(words & VAGUE)]


def imports_a_command(path: Path) -> list[str]:
    places = []
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module.endswith("__main__") or any(name.endswith("__main__") for name in names):
            places.append(f"line {node.lineno} imports a __main__ module")
    return places


def imports_a_helper_by_its_bare_name(path: Path) -> list[str]:
    """Under two names a helper would be two modules: everywhere it is tests.FOLDER.NAME."""
    helpers = {helper.stem for helper in TESTS if helper.name != "conftest.py"}
    places = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in helpers:
            places.append(f"line {node.lineno} imports {node.module}: say tests.FOLDER.{node.module}")
        elif isinstance(node, ast.Import):
            places += [f"line {node.lineno} imports {a.name}" for a in node.names if a.name in helpers]
    return places


CHECKS = (too_long, opens_without_saying, more_than_a_docstring, vague, imports_a_command)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_every_module_is_tidy(check: Check) -> None:
    assert len(MODULES) > 20
    assert offences(check, MODULES) == []


@pytest.mark.slow
@pytest.mark.parametrize("check", [too_long, opens_without_saying, vague, imports_a_helper_by_its_bare_name])
def test_every_test_module_is_tidy_too(check: Check) -> None:
    assert len(TESTS) > 20
    assert offences(check, TESTS) == []


def test_a_test_lies_in_the_folder_of_its_package_or_room() -> None:
    folders = Counter(path.parent.relative_to(PROJECT / "tests") for path in TESTS if path.name.startswith("test_"))
    no_package = {str(folder) for folder in folders if not (PROJECT / folder).is_dir()}
    assert no_package == {"hostile", "house", "nightly"}
    assert Path() not in folders and max(folders.values()) < 60


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (too_long, "long.py", '"""."""\n' + "x = 1\n" * LINES_MAX),
        (opens_without_saying, "silent.py", "x = 1\n"),
        (more_than_a_docstring, "__init__.py", '"""A package."""\nfrom os import path\n'),
        (vague, "string_utils.py", ""),
        (imports_a_command, "curious.py", "from fuzz.__main__ import main\n"),
        (imports_a_command, "curious.py", "from fuzz import __main__\n"),
        (imports_a_helper_by_its_bare_name, "test_curious.py", "from toy_traces import toy_trace\n"),
        (imports_a_helper_by_its_bare_name, "test_curious.py", "import sample_record\n"),
    ],
)
def test_an_untidy_module_is_noticed(check: Check, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert len(offences(check, [tmp_path / name])) == 1
