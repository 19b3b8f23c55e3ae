"""Plain installation on a GPU host that has a package index: a Python environment for each release, as releases pin
different versions of torch and of the kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from repro.cases.atomic_file import write_text
from runners.targets.environments import (
    MARKER,
    NotUsable,
    ReleaseVenv,
    checked_release,
    environments_directory,
    own_environments,
)
from runners.targets.install import Ran, need_space, only_one, reason, run_command

# torch with its CUDA libraries takes most of the 11 GB that an environment was seen to take.
SPACE_NEEDED = 15 << 30

Run = Callable[[Sequence[str]], Ran]


def make_environment(
    release: str, cache: Path | None = None, *, run: Run = run_command, say: Callable[[str], None] = print
) -> bool:
    """Give a release an environment of its own. False if it has one already. NotUsable, in one line, if that cannot
    be done; what was begun is then gone, or will be at the next attempt."""
    checked_release(release)
    folder = environments_directory(cache)
    environment = ReleaseVenv(release=release, path=folder / release)

    def is_there() -> bool:
        return any(other.release == release for other in own_environments(cache))

    if is_there():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder, say):
            # While this one waited, another may have made it.
            if is_there():
                return False
            if environment.path.exists():
                shutil.rmtree(environment.path)
            need_space(folder, SPACE_NEEDED)
            _make(environment, run)
    except OSError as error:
        raise NotUsable(f"cannot make an environment in {folder}: {error.strerror or error}") from error
    return True


def _make(environment: ReleaseVenv, run: Run) -> None:
    """Make it in its place, as environments cannot be moved, and write the marker last: without it, it is not whole."""
    whole = False
    try:
        _need(run([sys.executable, "-m", "venv", str(environment.path)]), environment, "make an environment")
        pip = [
            str(environment.python),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--retries=2",
        ]
        _need(run([*pip, f"sglang=={environment.release}"]), environment, f"install sglang {environment.release}")
        if not any((site / "sglang" / "srt").is_dir() for site in environment.site):
            raise NotUsable(f"sglang {environment.release} is not what was expected: it has no sglang/srt")
        os.sync()
        write_text(environment.path / MARKER, json.dumps({"release": environment.release}) + "\n")
        whole = True
    finally:
        if not whole:
            shutil.rmtree(environment.path, ignore_errors=True)


def _need(ran: Ran, environment: ReleaseVenv, deed: str) -> None:
    if ran.code:
        raise NotUsable(reason(deed, environment.path, ran.output))
