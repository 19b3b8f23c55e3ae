"""The changes of sglang that are written by hand: each can still be made."""

from __future__ import annotations

import ast

import pytest

from runners.targets.environments import installed, sglang_path
from tests.tools.handwritten import RELEASE, Change, NotThere, Result, load

CHANGES = load()


def test_names_are_unique() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES)


@pytest.mark.emulated
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_each_change_makes_other_python(change: Change) -> None:
    if RELEASE.sglang not in {release.release for release in installed()}:
        pytest.skip(f"{RELEASE.sglang} is not installed")  # the edits are of its text
    text = (sglang_path(RELEASE) / change.file).read_text()
    assert ast.dump(ast.parse(change.applied(text))) != ast.dump(ast.parse(text))


def test_a_text_that_is_not_there_is_refused() -> None:
    change = Change(name="c", runner="draft", backend="triton", file="sglang/a.py", edits=(("x", "y"),))
    with pytest.raises(NotThere, match="has 2 times: x"):
        change.applied("x x")
    assert change.applied("a x") == "a y"


@pytest.mark.parametrize(
    ("right", "first", "error", "expected"),
    [
        (False, "memory: a store", "", True),
        (False, "", "", False),
        (True, "", "", True),
        (True, "memory: a store", "", False),
        (False, "memory: a store", "exit code 3", False),
    ],
)
def test_bugs_are_to_be_found_and_right_changes_are_not(right: bool, first: str, error: str, expected: bool) -> None:
    change = Change(name="c", runner="draft", backend="triton", file="sglang/a.py", edits=(), right=right)
    assert Result(change=change, first=first, error=error).as_expected is expected
