"""The output of a worker and its sessions: files that they append to, and the part that belongs to one run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

# Bytes of a run's output that are searched, and characters of it that are reported.
SEARCHED_MAX, _TAIL_MAX = 4 << 20, 6000
# A campaign of days must not fill the disk with one worker's chatter: at the start of a run, a longer log is emptied.
LENGTH_MAX = 32 << 20


class Log:
    """path: the file to append to; without it, a nameless one that is gone with the process. OSError if it cannot
    be opened."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = path.open("a+b") if path else tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the pool
        # Several processes write to it; each must append, wherever the others are.
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)
        self._taken = 0

    def fileno(self) -> int:
        return self._file.fileno()

    def mark(self) -> int:
        """This place: a run begins."""
        length = os.fstat(self._file.fileno()).st_size
        if length > LENGTH_MAX:
            os.ftruncate(self._file.fileno(), 0)
            length = self._taken = 0
        return length

    def since(self, mark: int, most: int = _TAIL_MAX) -> str:
        """The text printed since then; of more than `most` bytes, the end."""
        length = os.fstat(self._file.fileno()).st_size
        start = max(mark, length - most)
        text = os.pread(self._file.fileno(), max(0, length - start), start).decode(errors="replace")
        return "..." + text if start > mark else text

    def take_over(self, other: Log) -> None:
        """Append what has been printed to another one since this was last done."""
        handle = other._file.fileno()
        length = os.fstat(handle).st_size
        if length > other._taken:
            # A log that cannot be written any more is no reason to end the process that it is of.
            with contextlib.suppress(OSError):
                os.write(self._file.fileno(), os.pread(handle, length - other._taken, other._taken))
            other._taken = length

    def close(self) -> None:
        self._file.close()
