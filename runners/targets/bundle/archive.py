"""Archives of a bundle: .tar.xz files, the same bytes for the same contents, compressed by all cores.

An archive is a row of independent xz blocks, which any tar reads as one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import os
import shutil
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

# Twice what level 6 looks back over: smaller blocks compress worse, larger ones keep cores idle at the end.
BLOCK = 16 << 20
LEVEL = 6
# Each thread takes about 100 MB while it compresses.
THREADS_MAX = 8
# Files carry this time whatever made them: the least that a zip file, where they come from, can express.
_TIME = 315532800
_NAME_MAX = 1 << 16  # bytes of a header that holds a long name


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
    with threads_for(workers) as pool, path.open("wb") as file:
        blocks = _Blocks(file, pool, ahead=2 * workers)
        # A stream needs nothing but write, whatever else typeshed asks of it.
        with tarfile.open(fileobj=blocks, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for member in members:
                tar.addfile(_info(member), io.BytesIO(member.read()))
        blocks.finish()


@contextlib.contextmanager
def threads_for(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads. After an exception, an interrupt say, what they have not begun is not done."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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


class BadArchive(ValueError):
    """This is no archive of a bundle, or incomplete. The text, one line, says why."""


class _Header(tarfile.TarInfo):
    """A header as `write` makes it: of a regular file, or of the long name of one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE):
            raise BadArchive(f"{header.name!r} is no regular file")
        # tarfile holds what is in front of a file whole.
        if header.size < 0 or (header.type == tarfile.XHDTYPE and header.size > _NAME_MAX):
            raise BadArchive(f"{header.name!r} states a size of {header.size} bytes")
        return header


def read(path: Path, into: Path, *, files_max: int, bytes_max: int) -> None:
    """Unpack an archive into a folder that is made for it: regular files below that folder, so many at most, of so many
    bytes together. BadArchive if it holds anything else or is damaged, OSError if the disk refuses."""
    into.mkdir(parents=True)
    files = size = 0
    try:
        # Of compressed streams in a row; and read once from front to end, whatever its headers say.
        with lzma.open(path) as stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:
            for member in tar:
                files, size = files + 1, size + member.size
                if files > files_max or size > bytes_max:
                    raise BadArchive(f"it holds more than the {files_max} files of {bytes_max} bytes that are stated")
                _extract(tar, member, into)
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise error if isinstance(error, BadArchive) else BadArchive(f"damaged: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    parts = member.name.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in member.name:
        raise BadArchive(f"{member.name!r} is no name below its folder")
    content = None if member.sparse else tar.extractfile(member)
    if content is None or member.size < 0:
        raise BadArchive(f"{member.name!r} is no regular file")
    path = into.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Nothing lies here but what this made, so no name leads elsewhere; one that comes twice is refused.
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)
    if path.stat().st_size != member.size:
        raise BadArchive(f"{member.name!r} ends too early")
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
