"""A shared library with GPU code, as nvcc lays it out, small enough for tests: what no kernel is in is noise."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

from runners.targets.bundle.fatbin import ELF, MAGIC, SECTION

PTX = 1
# Mangled names, shortened: what attends has its tile, the head dim of the values and the dtype in it.
FORWARD = (
    "_ZN7cutlass13device_kernelI16FlashAttnFwdSm{gpu}IJNS7_ILi128EEENS7_ILi{dim}EEEEEELi{dim}ENS_{dtype}EfNS_4arch"
)
PREPARE = "_ZN5flash32prepare_varlen_num_blocks_kernelILi16ELb0EEEviii"
COMBINE = "_ZN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS5_ILi64EEEEEELi4ELi256ELi1ENS_10bfloat16_tEf"

# Of each entry: which GPU, its kernels, and how many bytes of code each has.
Entries = Sequence[tuple[int, Sequence[str]]]


def elf(sections: Mapping[str, bytes]) -> bytes:
    """A 64-bit ELF file with these sections."""
    names = ["", *sections, ".shstrtab"]
    table, places = b"", []
    for name in names:
        places.append(len(table))
        table += name.encode() + b"\0"
    contents = [b"", *sections.values(), table]
    body, rows = bytearray(64), []
    for place, content in zip(places, contents, strict=True):
        body += bytes(-len(body) % 8)
        rows.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, len(body), len(content), 0, 0, 8, 0))
        body += content
    body += bytes(-len(body) % 8)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(rows), len(rows) - 1)
    body[:64] = header
    return bytes(body) + b"".join(rows)


def container(entries: Entries, *, kind: int = ELF) -> bytes:
    body = b""
    for gpu, kernels in entries:
        code = elf({f".text.{kernel}": random.Random(f"{gpu} {kernel}").randbytes(500) for kernel in kernels})
        code += bytes(-len(code) % 8)
        body += struct.pack("<HHIQIIII", kind, 257, 64, len(code), 0, 0, 65544, gpu).ljust(64, b"\0") + code
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def library(*containers: bytes, gap: int = 16) -> bytes:
    """With something before and behind the GPU code, and a gap between containers."""
    code = bytes(gap).join(containers)
    return elf({".text": b"the host's code", SECTION: code, ".data": b"what is behind"})


def flash_ops() -> bytes:
    """With what FlashAttention 3's library has, one of each."""
    gpus, dims, dtypes = (80, 90), (64, 128), ("6half_t", "10bfloat16_t", "12float_e4m3_t")
    forward = [
        container([(gpu, [FORWARD.format(gpu=gpu, dim=dim, dtype=dtype)]) for gpu in gpus])
        for dim in dims
        for dtype in dtypes
    ]
    shared = [container([(gpu, [name]) for gpu in gpus]) for name in (PREPARE, COMBINE)]
    return library(*forward, *shared)
