"""The console command of an installed eagleeye. In a wheel the packages that a checkout has at its root lie in `home`,
so that `fuzz`, `oracles`, `repro`, `reports` and `runners` meet no package of these names in an environment."""

from __future__ import annotations

import sys
from pathlib import Path

HOME = Path(__file__).with_name("home")


def at_home() -> None:
    """Make eagleeye's packages importable, in front of others of these names."""
    if HOME.is_dir() and str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))


def main() -> int:
    at_home()
    from repro.commands.eagleeye import console

    return console()
