"""Hypothesis, which the parent process must have in the pinned version. Another one draws other cases from the same
seed number, or none. A bundle brings it; here is where it lies then, and how a shell puts it in front."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from repro.commands.verbs import spelled
from runners.targets.bundle.pins import PARENT, PYTHON
from runners.targets.environments import cache_directory, targets_directory
from runners.targets.packages import versions

NAME, _, PINNED = PARENT[0].partition("==")
# The archive of a bundle, and the directory that it becomes.
FOLDER = "parent"


def other_python() -> str:
    """Why nothing compiled in a bundle can be imported here; empty if it can."""
    running = "{}.{}".format(*sys.version_info)
    return f"a bundle is for Python {PYTHON}, and {sys.executable} is Python {running}" if running != PYTHON else ""


def bundled(cache: Path | None = None) -> Path | None:
    """The folder of a bundle's Hypothesis in the cache, if it is the pinned one and this Python can import it."""
    if other_python():
        return None
    folders = (targets_directory(cache) / FOLDER, cache_directory(cache) / FOLDER)
    return next((path for path in folders if versions((NAME,), (path,), behind=()) == {NAME: PINNED}), None)


def export(path: Path) -> str:
    """The line for a shell that puts this directory in front of what its Pythons import."""
    return f"export PYTHONPATH={shlex.quote(str(path))}" + '"${PYTHONPATH:+:$PYTHONPATH}"'


def other_cases(cache: Path | None = None) -> str:
    """Why cases drawn here are others than elsewhere, and the command that helps; empty if they are the same. Known
    without an import: by the version of the Hypothesis that an import would find."""
    version = versions((NAME,)).get(NAME)
    if version == PINNED:
        return ""
    path = bundled(cache)
    helps = export(path) if path else "make setup or, without a package index, python -m runners unpack BUNDLE"
    if not version:
        return f"without Hypothesis no case is drawn; to have {PINNED}: {helps}"
    return f"Hypothesis {version} draws other cases than the pinned {PINNED}, or none; to install that one: {helps}"


def warn_of_hypothesis_version(cache: Path | None = None) -> None:
    """Say so in a line on standard error, for commands that draw: they refuse nothing."""
    if why := other_cases(cache):
        print(spelled(f"warning: {why}"), file=sys.stderr, flush=True)
