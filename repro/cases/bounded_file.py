"""Files of others, read whole and no further than a limit: also devices, which have no end, and pipes into which nobody
writes."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

WAIT_S = 10.0
_CHUNK = 1 << 20


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """All of this file. OSError, with a reason in words, if it cannot be read, is larger, or stays silent."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _need_size(path, os.fstat(handle).st_size, bytes_max)
        content = bytearray()
        while chunk := _next(path, handle, min(_CHUNK, bytes_max + 1 - len(content))):
            content += chunk
            _need_size(path, len(content), bytes_max)
        return bytes(content)
    finally:
        os.close(handle)


def read_text(path: Path, bytes_max: int) -> str:
    """All of this file, which is UTF-8. OSError as read_bytes; also if it is not."""
    try:
        return read_bytes(path, bytes_max).decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8 text, from byte {error.start} on", str(path)) from error


def _next(path: Path, handle: int, size: int) -> bytes:
    # Without a wait a pipe that has no writer yet would look like one that is at its end.
    if not select.select([handle], [], [], WAIT_S)[0]:
        raise OSError(errno.ETIMEDOUT, f"nothing was written into it for {WAIT_S:.0f} s", str(path))
    return os.read(handle, size)


def _need_size(path: Path, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise OSError(errno.EFBIG, f"{size} bytes are too many: the limit is {bytes_max}", str(path))
