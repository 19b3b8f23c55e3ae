"""GPU code inside a shared library: what of it is for which GPU, and the library without some of it.

nvcc lays GPU code into the section .nv_fatbin as a row of containers. A container is a header and entries, one for each
GPU that was compiled for; an entry is a header and an ELF file of its own, whose sections are named after its kernels.
CUDA loads an entry when one of its kernels is first launched, so what is never launched can be zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SECTION = ".nv_fatbin"
MAGIC = 0xBA55ED50
ELF = 2  # the kind of an entry that is machine code
_KERNEL = ".text."
# Of a container: magic, version, bytes of this header, bytes of all entries. Of an entry: kind, version, bytes of this
# header, bytes of its contents; and, further on, the GPU's number.
_CONTAINER, _ENTRY, _GPU = struct.Struct("<IHHQ"), struct.Struct("<HHIQ"), struct.Struct("<I")
_GPU_AT = 28
_ALIGNED = 8
# Of an ELF file's header: where the table of sections is; the bytes of a row, the rows, the row of the names.
_TABLE, _ROWS = struct.Struct("<Q"), struct.Struct("<HHH")
_TABLE_AT, _ROWS_AT = 40, 58
# Of a row: the name's place among the names, kind, flags, address, place in the file, bytes.
_ROW = struct.Struct("<IIQQQQ")


class NotALibrary(Exception):
    """These bytes are not a library with GPU code in it. The text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Code for one GPU: begin, end: its bytes in the library. gpu: 90 for sm_90. kernels: mangled names."""

    begin: int
    end: int
    gpu: int
    kernels: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    begin: int
    end: int


def cut_down(library: bytes, is_carried: Callable[[Entry], bool]) -> bytes:
    """The library with zeros in place of all GPU code but what is wanted: as long, and with all headers. NotALibrary,
    also if nothing of it is wanted."""
    view, parts, done, kept = memoryview(library), list[bytes | memoryview](), 0, 0
    for entry in entries(library):
        if is_carried(entry):
            kept += 1
            continue
        parts += [view[done : entry.begin], bytes(entry.end - entry.begin)]
        done = entry.end
    if not kept:
        raise NotALibrary("it has no GPU code of the wanted kind")
    return b"".join([*parts, view[done:]])


def entries(library: bytes) -> Iterator[Entry]:
    """The code for each GPU, in the order in which it lies there. NotALibrary if there is none, or in another form."""
    section = next((candidate for candidate in _sections(library, 0, len(library)) if candidate.name == SECTION), None)
    if section is None:
        raise NotALibrary(f"it has no section {SECTION}")
    place = section.begin
    while place + _CONTAINER.size <= section.end:
        magic, _, header, size = _CONTAINER.unpack_from(library, place)
        if magic == 0:  # containers begin at multiples of 8
            place += _ALIGNED
            continue
        if magic != MAGIC or place + header + size > section.end:
            raise NotALibrary(f"{SECTION} has no container at {place}")
        yield from _of_container(library, place + header, place + header + size)
        place += header + size


def _of_container(library: bytes, place: int, end: int) -> Iterator[Entry]:
    while place + _GPU_AT + _GPU.size <= end:
        kind, _, header, size = _ENTRY.unpack_from(library, place)
        begin, after = place + header, place + header + size
        if after > end or after <= place:
            raise NotALibrary(f"{SECTION} has an entry at {place} that is longer than its container")
        (gpu,) = _GPU.unpack_from(library, place + _GPU_AT)
        sections = _sections(library, begin, after) if kind == ELF else ()
        names = (section.name for section in sections)
        kernels = frozenset(name.removeprefix(_KERNEL) for name in names if name.startswith(_KERNEL))
        yield Entry(begin=begin, end=after, gpu=gpu, kernels=kernels)
        place = after


def _sections(library: bytes, begin: int, end: int) -> list[_Section]:
    """The sections of the ELF file that lies there. NotALibrary if none does."""
    if library[begin : begin + 5] != b"\x7fELF\x02":
        raise NotALibrary(f"there is no 64-bit ELF file at {begin}")
    try:
        (table,) = _TABLE.unpack_from(library, begin + _TABLE_AT)
        size, count, names_row = _ROWS.unpack_from(library, begin + _ROWS_AT)
        rows = [_ROW.unpack_from(library, begin + table + size * row) for row in range(count)]
        names = begin + rows[names_row][4]
    except (struct.error, IndexError) as error:
        raise NotALibrary(f"the ELF file at {begin} is cut short") from error

    def name(place: int) -> str:
        return library[names + place : library.index(b"\0", names + place, end)].decode(errors="replace")

    return [_Section(name=name(row[0]), begin=begin + row[4], end=begin + row[4] + row[5]) for row in rows]
