"""Files of arrays: one .npz of plain bytes, a JSON head that says which arrays there are, and the bytes of all, one
behind the other. What others wrote is read no further than a limit, whatever it says of its own sizes."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from repro.cases.atomic_file import written
from repro.cases.bounded_file import read_bytes

PLAIN = "biuf"
# Errors of a malformed head.
MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
_NAMES = ["body.npy", "head.npy"]
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BESIDE_MAX = 1 << 16  # bytes of a file beside those of its members
_HEADER_MAX = 1 << 10  # bytes of a member beside those of its array
_LENGTH_MAX, _AXES_MAX, _TYPE_MAX = 1 << 26, 16, 8


class Damaged(ValueError):
    """This is no file of arrays. The text, one line, says why."""


def save(path: Path, head: Mapping[str, Any], parts: Iterable[bytes], *, flushed: bool = True) -> None:
    """Put head and bytes at this path, whole or not at all. OSError if the disk refuses."""
    with written(path, flushed=flushed) as file:
        np.savez_compressed(file, head=_bytes(json.dumps(head).encode()), body=_bytes(b"".join(parts)))


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def load(path: Path, *, head_max: int, body_max: int) -> tuple[Any, bytes]:
    """The head, which may be any JSON, and the bytes. Damaged; OSError if it cannot be read; RecursionError."""
    data = read_bytes(path, head_max + body_max + _BESIDE_MAX)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.filename)
            if [member.filename for member in members] != _NAMES:
                raise Damaged(f"expected the members {', '.join(_NAMES)} and no others")
            body, head = (_member(archive, *each) for each in zip(members, (body_max, head_max), strict=True))
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return json.loads(head), body


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, bytes_max: int) -> bytes:
    if member.compress_type not in _KINDS:
        raise Damaged(f"{member.filename} is compressed by method {member.compress_type}")
    if member.file_size > bytes_max + _HEADER_MAX:
        raise Damaged(f"{member.filename}: {member.file_size} bytes are too many: the limit is {bytes_max}")
    with archive.open(member) as file:
        content = file.read(member.file_size + 1)
    if len(content) != member.file_size:
        raise Damaged(f"{member.filename} does not have the {member.file_size} bytes that it states")
    array = io.BytesIO(content)
    # numpy has no types for its format.
    if np.lib.format.read_magic(array) != (1, 0):  # type: ignore[no-untyped-call]  # untyped in numpy
        raise Damaged(f"{member.filename} is no plain array")
    shape, _, kind = np.lib.format.read_array_header_1_0(array)  # type: ignore[no-untyped-call]  # untyped in numpy
    if (shape, kind) != ((len(content) - array.tell(),), np.dtype(np.uint8)):
        raise Damaged(f"{member.filename} is no array of its bytes")
    return content[array.tell() :]


def arrays(forms: Iterable[tuple[Any, Any]], body: bytes) -> Iterator[npt.NDArray[Any]]:
    """The arrays of which these are the types and shapes. ValueError, TypeError if they are not exactly the bytes."""
    offset = 0
    for name, shape in forms:
        if not isinstance(name, str) or len(name) > _TYPE_MAX or len(shape) > _AXES_MAX:
            raise ValueError("not an array's type and shape")
        kind = np.dtype(name)
        if kind.kind not in PLAIN or not all(type(length) is int and 0 <= length <= _LENGTH_MAX for length in shape):
            raise ValueError("not an array of plain numbers")
        size = math.prod(shape) * kind.itemsize
        if size > len(body) - offset:
            raise ValueError("fewer bytes than arrays")
        yield np.frombuffer(body, dtype=kind, count=math.prod(shape), offset=offset).reshape(shape)
        offset += size
    if offset != len(body):
        raise ValueError("more bytes than arrays")
