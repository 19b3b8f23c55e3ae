"""The stored seeds of each format, and what is changed in one for it to be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.cases import codec
from tests.builders.project import DATA

# The same seed in both formats.
OLD, NEW = DATA / "seed-format-1.json", DATA / "seed-format-2.json"

Change = Callable[[Any], None]


def put(*path: str | int, to: object) -> Change:
    """A change that puts this value at the path."""

    def change(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return change


def drop(*path: str | int) -> Change:
    """A change that drops what is at the path."""

    def change(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return change


def need_refused(path: Path, change: Change, message: str) -> None:
    """The changed file is refused in one line that has the message."""
    value = json.loads(path.read_text())
    change(value)
    with pytest.raises(codec.BadSeed) as refusal:
        codec.loads(json.dumps(value))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 2000
