"""The names that are close to one that is unknown, for a refusal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CLOSE, _ALIKE = 3, 0.75


def close_to(name: str, names: Iterable[str]) -> str:
    """The close names as the end of a sentence; empty if there are none."""
    close = difflib.get_close_matches(name, sorted(set(names)), _CLOSE, _ALIKE)
    return f"; did you mean {' or '.join(close)}?" if close else ""
