"""The places of this checkout, and PYTHONPATH of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# Files of older formats, and public reports.
DATA = PROJECT / "tests" / "data"


def in_front(*folders: Path) -> str:
    """These folders, and behind them what was there before: a host without a package index has its Hypothesis there."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))
