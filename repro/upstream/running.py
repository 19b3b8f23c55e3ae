"""A command that is run to its end, or for so long; all that it started in its process group ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(
    words: Sequence[str], environment: Mapping[str, str], patience: float, folder: Path | None = None
) -> tuple[int, bytes]:
    """The exit code and what was printed. subprocess.TimeoutExpired; OSError if there is no such command."""
    with subprocess.Popen(
        words,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=patience)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed
