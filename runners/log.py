"""What a worker prints: a file that the worker appends to, and the part of it that belongs to one run."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

# A campaign of days must not fill the disk with one worker's chatter: at the start of a run, a longer log is emptied.
LENGTH_MAX = 32 << 20
_TAIL_MAX = 6000


class Log:
    """path: the file to append to; without it, a nameless one that is gone with the process. OSError if it cannot
    be opened."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a+b") if path else tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the pool
        # Several processes write to it; each must append, wherever the others are.
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)
        self._mark = 0
        self.mark()

    def fileno(self) -> int:
        return self._file.fileno()

    def mark(self) -> None:
        """Remember this place: a run begins."""
        length = os.fstat(self._file.fileno()).st_size
        if length > LENGTH_MAX:
            os.ftruncate(self._file.fileno(), 0)
            length = 0
        self._mark = length

    def since_mark(self) -> str:
        """What has been printed since then; of much, the end."""
        length = os.fstat(self._file.fileno()).st_size
        start = max(self._mark, length - _TAIL_MAX)
        text = os.pread(self._file.fileno(), length - start, start).decode(errors="replace")
        return "..." + text if start > self._mark else text

    def last_line(self) -> str:
        """The last line of it that says something."""
        lines = [line.strip() for line in self.since_mark().splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        self._file.close()
