"""Kernels that store past what they were given: python overflowing.py prints, as JSON, what they changed where.

Needs TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import triton
import triton.language as tl

from runners.engines.triton import interpreter

interpreter.install()


# Triton's kernels: their parameters are tensors or numbers, as it comes, and have no types that could be written.
@triton.jit
def fill(pointer, first, mask_from, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = first + tl.arange(0, SIZE)
    tl.store(pointer + offsets, offsets, mask=offsets >= mask_from)


@triton.jit
def fill_both(one, other, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIZE)
    tl.store(one + offsets, offsets)
    tl.store(other + offsets, offsets)


@triton.jit
def fill_by_table(table, row, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.load(table + row).to(tl.pointer_type(tl.int32))
    tl.store(place + tl.arange(0, SIZE), 7 + tl.zeros([SIZE], dtype=tl.int32))


def main() -> None:
    memory = np.zeros(32, dtype=np.int32)
    middle = torch.from_numpy(memory[8:24])  # whose storage begins and ends with it
    told = {}

    def note(name: str) -> None:
        told[name] = memory.tolist()
        memory[:] = 0

    fill[(1,)](middle, -8, -100, 32)
    note("past both ends")
    fill[(1,)](middle[4:8], -8, -100, 16)
    note("past a view")
    fill[(1,)](middle, 0, 12, 32)
    note("masked")
    fill_both[(1,)](middle, torch.from_numpy(memory[:4]), 8)
    note("of two, one too small")
    table = torch.tensor([memory.ctypes.data], dtype=torch.int64)
    fill_by_table[(1,)](table, 0, 4)
    note("by address")
    fill[(1,)](middle, -8, -100, 32)
    note("past both ends again")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
