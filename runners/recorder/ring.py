"""The file in which the last calls of a process are: a ring of slots of one size, mapped into memory.

What a process wrote stays readable when it is killed. A slot has a checksum, so that one that was being written is
known; facts are kept twice, so that one of the two is always whole. Numbers are little-endian.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"eagleeye"
FORMAT = 1
ENDING = ".recording"
# Requests of a call that are kept; calls are as large as sglang's largest usual bucket.
ROWS = 512
CALLS = 1024
_START = struct.Struct("<8sIII")  # magic, format, calls, rows
_FACTS = struct.Struct("<QII")  # number, length, checksum; behind it JSON
_FACTS_AT, _FACTS_SIZE = 4096, 1 << 16
_CALLS_AT = _FACTS_AT + 2 * _FACTS_SIZE
_CALL = struct.Struct("<QIB3xqHHiiiI")  # number, checksum, state; behind the state all that the checksum is of
_NUMBER, _SUMMED = struct.Struct("<QI"), 16
# States of a call: under way, ended, ended by an exception.
ENTERED, LEFT, RAISED = 0, 1, 2
# Flags: a graph ran it, the runner's own lengths, lengths of requests so far, request slots, not all rows.
GRAPH, LENGTHS, COUNTED, SLOTS, CUT = 1, 2, 4, 8, 16
UNKNOWN = -1
_LARGEST = 1 << 28


class BadRing(ValueError):
    """The file is no ring, or another version's. The text is one line."""


@dataclass(frozen=True)
class Call:
    """A call of a runner: its number from 1 on, nanoseconds of the monotonic clock, the runner's number in the facts,
    flags and state as above, requests, bucket (0: none), requests of the busiest rank; and of each request the length
    and the request slot, UNKNOWN where they are not."""

    number: int
    time: int
    runner: int
    flags: int
    state: int
    requests: int
    bucket: int
    elsewhere: int
    lengths: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """facts: JSON. calls: in their order, without those that were overwritten. lost: slots that are not whole."""

    facts: dict[str, Any]
    calls: tuple[Call, ...]
    lost: int


def slot_size(rows: int) -> int:
    return (_CALL.size + 8 * rows + 7) // 8 * 8


class Ring:
    """A ring that a process writes. Mutable."""

    def __init__(self, path: Path, calls: int = CALLS, rows: int = ROWS) -> None:
        self.path, self.calls, self.rows = path, calls, rows
        self._size = slot_size(rows)
        self._written = self._facts_written = 0
        length = _CALLS_AT + calls * self._size
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, length)
            self._map = mmap.mmap(handle, length)
        finally:
            os.close(handle)
        _START.pack_into(self._map, 0, MAGIC, FORMAT, calls, rows)

    def say(self, facts: dict[str, Any]) -> None:
        """Replace the facts. ValueError if they are too long."""
        text = json.dumps(facts).encode()
        if len(text) > _FACTS_SIZE - _FACTS.size:
            raise ValueError(f"facts of {len(text)} bytes are too long")
        self._facts_written += 1
        place = _FACTS_AT + self._facts_written % 2 * _FACTS_SIZE
        self._map[place + _FACTS.size : place + _FACTS.size + len(text)] = text
        _FACTS.pack_into(self._map, place, self._facts_written, len(text), zlib.crc32(text))

    def enter(
        self,
        time: int,
        runner: int,
        flags: int,
        requests: int,
        bucket: int,
        elsewhere: int,
        lengths: Sequence[int],
        slots: Sequence[int],
    ) -> int:
        """Write a call that begins; lengths and slots are as many. Its number, for leave()."""
        count = len(lengths)
        if count > self.rows:
            lengths, slots, count, flags = lengths[: self.rows], slots[: self.rows], self.rows, flags | CUT
        self._written += 1
        fields = (ENTERED, time, runner, flags, requests, bucket, elsewhere, count)
        self._put(self._written, fields, array("i", lengths).tobytes() + array("i", slots).tobytes())
        return self._written

    def amend(self, number: int, lengths: Sequence[int]) -> None:
        """Put a call's own lengths, which came later, in the place of those that were counted, unless it was
        overwritten."""
        place = self._place(number)
        if place and len(lengths) == _CALL.unpack_from(self._map, place)[-1]:
            _, _, state, time, runner, flags, *rest, count = _CALL.unpack_from(self._map, place)
            begin = place + _CALL.size + 4 * count
            fields = (state, time, runner, flags & ~COUNTED | LENGTHS, *rest, count)
            self._put(number, fields, array("i", lengths).tobytes() + self._map[begin : begin + 4 * count])

    def _put(self, number: int, fields: tuple[int, ...], values: bytes) -> None:
        place = _CALLS_AT + number % self.calls * self._size
        header = _CALL.pack(0, 0, *fields)
        checksum = zlib.crc32(values, zlib.crc32(header[_SUMMED:], number & 0xFFFFFFFF))
        # Without a number a slot is none, and no older call seems to be newer than it is.
        self._map[place : place + _CALL.size + len(values)] = header + values
        _NUMBER.pack_into(self._map, place, number, checksum)

    def _place(self, number: int) -> int:
        """The slot of a call; 0 if it was overwritten."""
        return _CALLS_AT + number % self.calls * self._size if self._written - number < self.calls else 0

    def leave(self, number: int, state: int) -> None:
        """Say how a call ended, unless it was overwritten."""
        if place := self._place(number):
            self._map[place + 12] = state

    def copy(self, path: Path) -> None:
        """Write the ring as it is into another file, whole or not at all. OSError."""
        copy_ring(bytes(self._map), path)

    def close(self) -> None:
        self._map.close()


def copy_ring(content: bytes, path: Path) -> None:
    """Write these bytes of a ring into a file, whole or not at all. OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.touch(0o600)
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(content: bytes) -> Recording:
    """The ring in these bytes. BadRing if they are none."""
    if len(content) < _START.size or content[: len(MAGIC)] != MAGIC:
        raise BadRing("no recording of eagleeye's")
    _, version, calls, rows = _START.unpack_from(content)
    if version != FORMAT:
        raise BadRing(f"a recording of format {version}, not {FORMAT}: read it with the eagleeye that made it")
    length = _CALLS_AT + calls * slot_size(rows)
    if not calls or not rows or length > _LARGEST or len(content) != length:
        raise BadRing(f"{len(content)} bytes, not {length}: the recording is cut; copy it again")
    slots = [_call(content, _CALLS_AT + place * slot_size(rows), rows) for place in range(calls)]
    whole = sorted((call for call in slots if isinstance(call, Call)), key=lambda call: call.number)
    newest = whole[-1].number if whole else 0
    return Recording(
        facts=_facts(content),
        calls=tuple(call for call in whole if call.number > newest - calls),
        lost=sum(call is False for call in slots),
    )


def _facts(content: bytes) -> dict[str, Any]:
    texts: list[tuple[int, bytes]] = []
    for place in (_FACTS_AT, _FACTS_AT + _FACTS_SIZE):
        number, length, checksum = _FACTS.unpack_from(content, place)
        text = content[place + _FACTS.size : place + _FACTS.size + min(length, _FACTS_SIZE)]
        if number and zlib.crc32(text) == checksum:
            texts.append((number, text))
    if not texts:
        raise BadRing("a recording that was cut short before it began: the server had no call yet")
    try:
        facts = json.loads(max(texts)[1])
    except (ValueError, RecursionError) as error:
        raise BadRing("facts that are not JSON: no recording of eagleeye's") from error
    return facts if isinstance(facts, dict) else {}


def _call(content: bytes, place: int, rows: int) -> Call | bool | None:
    """A call; None of a slot that was never used, False of one that is not whole."""
    number, checksum, state, time, runner, flags, requests, bucket, elsewhere, count = _CALL.unpack_from(content, place)
    if not number:
        return False if any(content[place : place + _CALL.size]) else None
    end = place + _CALL.size + 8 * min(count, rows)
    if count > rows or zlib.crc32(content[place + _SUMMED : end], number & 0xFFFFFFFF) != checksum:
        return False
    values = struct.unpack_from(f"<{2 * count}i", content, place + _CALL.size)
    return Call(
        number=number,
        time=time,
        runner=runner,
        flags=flags,
        state=state,
        requests=requests,
        bucket=bucket,
        elsewhere=elsewhere,
        lengths=values[:count],
        slots=values[count:],
    )
