"""Frames between the pool and a session: a JSON head, then the raw bytes of arrays.

A frame is a mark, two lengths, the head and the body. A reader refuses whatever is not exactly that, so that
stray output is never taken for an answer.
"""

from __future__ import annotations

import functools
import json
import math
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.traces.trace import Array

MARK = b"eye1"
_PREFIX = struct.Struct("<4sIQ")
# Far above what a case needs (64 steps of a few MB), far below what would hurt the pool.
HEAD_MAX = 64 << 20
BODY_MAX = 4 << 30
_CHUNK = 1 << 20


class BadFrame(ValueError):
    """The bytes that were read are no frame; the text says why."""


class CutShort(BadFrame):
    """The other side closed, or died, in the middle of a frame."""


class Silence(Exception):
    """Nothing could be read or written before the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message. head: JSON values. body: the bytes of the arrays that the head lists, one after the other."""

    head: dict[str, Any]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of an array in a body. size: its bytes."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    size: int


@functools.lru_cache(maxsize=64)
def _plain(text: str) -> np.dtype[np.generic]:
    """The dtype of this short text form. BadFrame if it names none, or one that is not plain numbers."""
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError) as error:
        raise BadFrame(f"{text!r:.80} is not a dtype") from error
    if dtype.kind not in "biuf":
        raise BadFrame(f"dtype {text!r:.80} is not one of plain numbers")
    return dtype


def form_of(value: object) -> Form:
    """Read a form out of a head. BadFrame if it is invalid, or names a dtype that is not of plain numbers."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], list)):
        raise BadFrame(f"{value!r:.80} describes no array")
    dtype, shape = value
    if not all(type(length) is int and 0 <= length <= BODY_MAX for length in shape) or len(shape) > 16:
        raise BadFrame(f"{shape!r:.80} is not a shape")
    plain = _plain(dtype)
    return Form(dtype=plain, shape=tuple(shape), size=math.prod(shape) * plain.itemsize)


def arrays(forms: Sequence[Form], body: bytes) -> list[Array]:
    """The arrays of a body, read-only views of it. BadFrame if the body is not exactly as long as they are."""
    parsed: list[Array] = []
    offset = 0
    for form in forms:
        if form.size > len(body) - offset:
            raise BadFrame(f"arrays of more than the {len(body)} bytes that came with them")
        parsed.append(np.ndarray(form.shape, form.dtype, body, offset))
        offset += form.size
    if offset != len(body):
        raise BadFrame(f"{len(body) - offset} bytes beyond the arrays that were named")
    return parsed


def pack(frame: Frame) -> bytes:
    """The bytes of a frame."""
    return packed(json.dumps(frame.head, separators=(",", ":")).encode(), frame.body)


def packed(head: bytes, body: bytes) -> bytes:
    """The bytes of a frame whose head is JSON text already."""
    return b"".join((_PREFIX.pack(MARK, len(head), len(body)), head, body))


def receive(read: Callable[[int], bytes]) -> Frame | None:
    """The next frame, or None where the other side has closed. read(n) gives n bytes, or fewer at the end.

    BadFrame if something else than a frame came, CutShort if only a part of one.
    """
    prefix = read(_PREFIX.size)
    if not prefix:
        return None
    if prefix[: len(MARK)] != MARK[: len(prefix)]:
        raise BadFrame(f"expected a frame, got {prefix!r}")
    if len(prefix) < _PREFIX.size:
        raise CutShort("the frame ends within its prefix")
    _, head_size, body_size = _PREFIX.unpack(prefix)
    if head_size > HEAD_MAX or body_size > BODY_MAX:
        raise BadFrame(f"a frame of {head_size} + {body_size} bytes is over the limit")
    text, body = read(head_size), read(body_size)
    if len(text) < head_size or len(body) < body_size:
        raise CutShort("the frame ends too early")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"the frame's head is not JSON: {text[:80]!r}") from error
    if not isinstance(head, dict):
        raise BadFrame(f"the frame's head is not an object: {text[:80]!r}")
    return Frame(head=head, body=body)


def read_exactly(handle: int, size: int, deadline: float = math.inf) -> bytes:
    """`size` bytes from a descriptor, or fewer where the other side has closed. Silence once time.monotonic()
    passes the deadline."""
    parts: list[bytes] = []
    remaining = size
    while remaining:
        until_ready(handle, select.POLLIN, deadline)
        try:
            part = os.read(handle, min(remaining, _CHUNK))
        except ConnectionResetError:
            # A socket says so when its peer died with bytes unread; for us that is the end, too.
            break
        if not part:
            break
        parts.append(part)
        remaining -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_all(handle: int, data: bytes, deadline: float = math.inf) -> None:
    """Write everything. Silence past the deadline; OSError (a broken pipe) if the reader is gone."""
    rest = memoryview(data)
    while rest:
        until_ready(handle, select.POLLOUT, deadline)
        try:
            rest = rest[os.write(handle, rest[:_CHUNK]) :]
        except BlockingIOError:
            # A non-blocking socket can be polled writable and yet lack room for what it was given.
            time.sleep(0.001)


def until_ready(handle: int, event: int, deadline: float) -> None:
    """Return when the descriptor is ready, or its other side has closed. Silence past the deadline. Without a deadline
    the read or write itself does the waiting."""
    if deadline == math.inf:
        return
    poll = select.poll()
    poll.register(handle, event)
    remaining = deadline - time.monotonic()
    if remaining <= 0 or not poll.poll(remaining * 1000):
        raise Silence
