"""Lists of which `make test` tries the first few, and `make test-more` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(things: Iterable[Any], count: int) -> list[Any]:
    """Parameters for pytest: all but the first `count` are marked exhaustive. A tuple has a value for each of several
    parameters."""
    every = [thing if isinstance(thing, tuple) else (thing,) for thing in things]
    return [
        pytest.param(*values, marks=pytest.mark.exhaustive if number >= count else ())
        for number, values in enumerate(every)
    ]
