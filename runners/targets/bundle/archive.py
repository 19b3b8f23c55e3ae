"""Archives of a bundle: .tar.xz files, the same bytes for the same contents, compressed by all cores.

An archive is a row of independent xz blocks, which any tar reads as one file.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Twice what level 6 looks back over: smaller blocks compress worse, larger ones keep cores idle at the end.
BLOCK = 16 << 20
LEVEL = 6
# Each thread takes about 100 MB while it compresses.
THREADS_MAX = 8
# Files carry this time whatever made them: the least that a zip file, where they come from, can express.
_TIME = 315532800


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file of an archive. name: its path. size: its bytes. mark: a text that changes with its contents."""

    name: str
    size: int
    mark: str
    read: Callable[[], bytes]
    executable: bool = False


def made_from(members: Iterable[Member]) -> str:
    """The identity of an archive's contents: 16 hex digits."""
    lines = sorted(f"{member.name}\0{member.size}\0{member.mark}\0{member.executable}\n" for member in members)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def write(path: Path, members: Iterable[Member], *, threads: int | None = None) -> None:
    """Write an archive of these members, in this order. OSError if the disk refuses."""
    workers = threads or min(THREADS_MAX, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, path.open("wb") as file:
        blocks = _Blocks(file, pool, ahead=2 * workers)
        # A stream needs nothing but write, whatever else typeshed asks of it.
        with tarfile.open(fileobj=blocks, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for member in members:
                tar.addfile(_info(member), io.BytesIO(member.read()))
        blocks.finish()


def _info(member: Member) -> tarfile.TarInfo:
    info = tarfile.TarInfo(member.name)
    info.size, info.mtime = member.size, _TIME
    info.mode = 0o755 if member.executable else 0o644
    return info


class _Blocks:
    """Takes bytes in, writes them to a file in compressed blocks. Mutable."""

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor, ahead: int) -> None:
        self._file, self._pool, self._ahead = file, pool, ahead
        self._block = bytearray()
        self._under_way: deque[Future[bytes]] = deque()

    def write(self, data: bytes) -> int:
        self._block += data
        while len(self._block) >= BLOCK:
            self._give(bytes(self._block[:BLOCK]))
            del self._block[:BLOCK]
        return len(data)

    def finish(self) -> None:
        """Compress and write what is left."""
        if self._block:
            self._give(bytes(self._block))
        while self._under_way:
            self._file.write(self._under_way.popleft().result())

    def _give(self, block: bytes) -> None:
        # lzma lets go of the interpreter while it works, so threads are enough.
        self._under_way.append(self._pool.submit(lzma.compress, block, preset=LEVEL))
        if len(self._under_way) > self._ahead:
            self._file.write(self._under_way.popleft().result())


def read(path: Path, into: Path) -> None:
    """Unpack an archive. tarfile.TarError, lzma.LZMAError, EOFError or OSError if it is not an archive, or
    incomplete."""
    with tarfile.open(path, "r:xz") as tar:
        tar.extractall(into, filter="data")


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
