"""Questions to a forked process."""

from __future__ import annotations

import os

import pytest

from runners.engines.forked import answer


def test_what_it_says_is_heard_and_what_it_changes_ends_with_it() -> None:
    changed: list[int] = []

    def say() -> str:
        changed.append(1)
        return f"{os.getpid()} {len(changed)}"

    pid, length = answer(say).split()
    assert int(pid) != os.getpid() and length == "1" and not changed


def test_one_that_raises_says_nothing_and_prints_why(capfd: pytest.CaptureFixture[str]) -> None:
    assert answer(lambda: str(1 // 0)) == ""
    assert "ZeroDivisionError" in capfd.readouterr().out
