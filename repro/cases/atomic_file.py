"""Files that are either whole or absent, whatever kills the writer: written beside, flushed to disk, renamed.

A path that exists and is no regular file (a device, a pipe) is written to, and never replaced. Of a symbolic link the
file that it leads to is replaced, and the link stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_STREAMS = (1, 2)
_TEMPORARY = re.compile(r"\.\d+-\d+\.tmp$")


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path` as UTF-8, replacing what was there in one step. OSError, naming the path, if the disk
    refuses."""
    with written(path) as file:
        file.write(text.encode())


def append_text(path: Path, text: str) -> None:
    """Put `text` behind what others have written there. OSError, naming the path, if the disk refuses."""
    with _named(path), path.open("ab") as file:
        file.write(text.encode())


@contextlib.contextmanager
def written(path: Path, *, flushed: bool = True) -> Iterator[BinaryIO]:
    """A file to be written, which is at `path` once the block has ended, and not at all if the block raises. flushed:
    also after a power cut. OSError, naming the path, if the disk refuses."""
    with _named(path), _in_place(path) or _beside(path.resolve() if path.is_symlink() else path, flushed) as file:
        yield file


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """A disk that is full does not say of which file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _in_place(path: Path) -> BinaryIO | None:
    """The file that is written to as it is: no regular one, or the one that standard output goes to."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    for stream, number in zip((sys.stdout, sys.stderr), _STREAMS, strict=True):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), status):
                stream.flush()
                return os.fdopen(os.dup(number), "wb")
    return None if stat.S_ISREG(status.st_mode) else path.open("wb")


@contextlib.contextmanager
def _beside(path: Path, flushed: bool) -> Iterator[BinaryIO]:
    # Process and thread name the temporary file: no two living writers share one.
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}-{threading.get_ident()}.tmp")
    _sweep(path.parent)
    try:
        with _locked(beside) as file:
            yield file
            file.flush()
            if flushed:
                os.fsync(file.fileno())
            beside.replace(path)  # while it is locked: another process may sweep
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    if flushed:
        _sync_folder(path.parent)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """A new file, locked for as long as its writer lives, where the file system has locks."""
    while True:
        with path.open("wb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:  # else it was swept before it was locked
                yield file
                return


@functools.cache
def _sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers have left in this folder. Once a process: it takes a listing."""
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.search(path.name) and path.is_file():
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else another's, swept and made again
                    path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut. File systems that cannot sync a folder refuse; that is no loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
