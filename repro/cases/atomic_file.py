"""Files that are either whole or absent, whatever kills the writer: written beside, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path` as UTF-8, replacing what was there in one step. OSError if the disk refuses."""
    # Process and thread name the temporary file: no two living writers share one, and one that a killed
    # writer left behind is simply overwritten by its successor.
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut. File systems that cannot sync a folder refuse; that is no loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
