"""Files and folders that no other process has at the same time, temporary ones and those with a name."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


def own_folder(parent: Path, name: str) -> Path:
    """Make parent/NAME-TIME, or one numbered from 2 on where others came in the same second. OSError if the disk
    refuses."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    numbers = itertools.count(1)
    while True:
        path = parent / _numbered(f"{name}-{stamp}", next(numbers))
        # Creating it decides: looking first and creating it then would share it.
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder in the system's temporary one, for as long as the block lasts. If its process is killed, the next that
    asks for one with this prefix removes it."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            handle = _opened_and_locked(path, fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
    folder, handle = _new_locked(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _new_locked(prefix: str) -> tuple[Path, int]:
    """A new temporary folder, and the handle that locks it. Until it is locked, another process may take it for one
    that was left, and remove it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            handle = _opened_and_locked(folder)
            if os.fstat(handle).st_nlink:
                return folder, handle
            os.close(handle)


def _opened_and_locked(folder: Path, how: int = 0) -> int:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | how)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def own_file(path: Path) -> Iterator[Path]:
    """This path while no other process holds it, else one numbered from 2 on beside it. What lies there may be
    replaced by who holds it. OSError if the folder cannot be written to."""
    for number in itertools.count(1):
        suffix = "".join(path.suffixes[-2:])
        numbered = path.with_name(_numbered(path.name.removesuffix(suffix), number) + suffix)
        lock = numbered.with_name(f".{numbered.name}.lock")
        handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if _held(handle, lock):
                try:
                    yield numbered
                finally:
                    # Removed before the lock is released: a process that opened it meanwhile sees that the file is
                    # stale.
                    lock.unlink(missing_ok=True)
                return
        finally:
            os.close(handle)


def _held(handle: int, lock: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(handle).st_ino == lock.stat().st_ino
    except OSError:
        return False


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
