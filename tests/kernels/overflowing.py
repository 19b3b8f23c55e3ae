"""Kernels that touch what they were not given: python overflowing.py prints, as JSON, what they changed where.

Needs TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import triton
import triton.language as tl

from runners.engines import launch_memory
from runners.engines.guards import Guards
from runners.engines.triton import interpreter

interpreter.install()


# Triton's kernels: their parameters are tensors or numbers, as it comes, and have no types that could be written.
@triton.jit
def fill(pointer, first, mask_from, SIZE: tl.constexpr):
    offsets = first + tl.arange(0, SIZE)
    tl.store(pointer + offsets, offsets, mask=offsets >= mask_from)


@triton.jit
def fill_both(first, second, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(first + offsets, offsets)
    tl.store(second + offsets, offsets)


@triton.jit
def fill_by_table(table, row, SIZE: tl.constexpr):
    place = tl.load(table + row).to(tl.pointer_type(tl.int32))
    tl.store(place + tl.arange(0, SIZE), 7 + tl.zeros([SIZE], dtype=tl.int32))


@triton.jit
def fill_places_by_table(table, places, below, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    base = tl.load(table).to(tl.pointer_type(tl.int32))
    tl.store(base + tl.load(places + lanes, mask=lanes < below, other=0), 7 + tl.zeros([SIZE], dtype=tl.int32))


@triton.jit
def gather(pointer, table, first, below, SIZE: tl.constexpr):
    offsets = first + tl.arange(0, SIZE)
    values = tl.load(table + offsets, mask=offsets < below, other=0)
    tl.store(pointer + tl.arange(0, SIZE), values)


@triton.jit
def gather_either(pointer, table, other, below, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(pointer + lanes, tl.load(tl.where(lanes < below, table + lanes, other + lanes)))


@triton.jit
def fill_by_program(pointer, step, same):
    program = tl.program_id(0)
    tl.store(pointer + program // step, -1)  # which this program itself replaces
    tl.store(pointer + program // step, tl.where(same > 0, same, program))


@triton.jit
def fill_by_lane(pointer, step, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(pointer + lanes // step, lanes)


@triton.jit
def sum_of_row(pointer, kv_indptr, kv_indices, SIZE: tl.constexpr):
    row = tl.program_id(0)
    start, end = tl.load(kv_indptr + row), tl.load(kv_indptr + row + 1)
    offsets = start + tl.arange(0, SIZE)
    tl.store(pointer + row, tl.sum(tl.load(kv_indices + offsets, mask=offsets < end, other=0)))


@triton.jit
def first_of_slot(pointer, K_Buffer, kv_indices, stride):
    tl.store(pointer, tl.load(K_Buffer + tl.load(kv_indices) * stride))


memory = np.zeros(32, dtype=np.int32)
middle = torch.from_numpy(memory[8:24])  # whose storage begins and ends with it
notes: dict[str, object] = {}


def note(name: str) -> None:
    notes[name] = memory.tolist()
    notes["seen of " + name] = {what: numbers.tolist() for what, numbers in launch_memory.taken().items()}
    memory[:] = 0


def views() -> None:
    fill[(1,)](middle, -8, -100, 32)
    note("past both ends")
    fill[(1,)](middle[4:8], -8, -100, 16)
    note("past a view")
    fill[(1,)](middle[4:8], -4, -100, 8)
    note("beside a view, of the same storage")
    fill_both[(1,)](middle[4:8], middle, 8)
    note("beside a view, in another one")


def indices_of_rows() -> None:
    starts, indices = torch.tensor([0, 3, 6, 6], dtype=torch.int32), torch.arange(8, dtype=torch.int32)
    for name, rows in (("one short", starts[:2]), ("right", starts[:3]), ("one too many", starts)):
        sum_of_row[(2,)](middle, rows, indices, 4)
        note(f"row starts, {name}")
    sum_of_row[(2,)](middle, starts[:3], indices[:5], 4)
    note("a view of too few indices")
    for kind in (torch.int64, torch.int32):
        first_of_slot[(1,)](middle, torch.arange(8, dtype=torch.int32), torch.ones(1, dtype=kind), 4)
        note(f"slots, {kind}")
    for option in ("num_warps", "waves_per_eu"):
        try:
            fill[(1,)](middle, 0, 0, 1, **{option: 2})
        except KeyError as error:
            notes[f"option {option}"] = str(error)
        launch_memory.taken()


def tables() -> None:
    fill[(1,)](middle, 0, 12, 32)
    note("masked")
    fill_both[(1,)](middle, torch.from_numpy(memory[:4]), 8)
    note("of two, one too small")
    table = torch.tensor([memory.ctypes.data], dtype=torch.int64)
    fill_by_table[(1,)](table, 0, 4)
    note("by address")
    places = torch.tensor([4, 5, 6, 7, 1, 1, 1, 1])
    for name, tensor in (("view", places[:4]), ("storage", places[:4].clone())):
        for below in (4, 8):
            fill_places_by_table[(1,)](table, tensor, below, 8)
            note(f"by address, {below} places of a {name}")
    fill[(1,)](middle, -8, -100, 32)
    note("past both ends again")


def loads() -> None:
    table = torch.arange(8, dtype=torch.int32) + 100
    gather[(1,)](middle, table, 4, 8, 8)
    note("a load that its mask keeps inside")
    gather[(1,)](middle, table, 4, 99, 8)
    note("a load past the end")
    gather[(1,)](middle, table[:0], 0, 99, 8)
    note("a load of what is empty")
    with Guards(lambda: False):
        banded = torch.zeros(8, dtype=torch.int32)
    gather[(2,)](middle, banded, 4, 99, 8)
    note("a load of a guard band")
    table, behind = (torch.from_numpy(memory[first : first + 8]) for first in (0, 8))  # two storages, side by side
    for first in (4, 8):
        table[:] = 1
        behind[:] = 2
        gather[(1,)](behind, table, first, 99, 8)
        note(f"a load from {first} on, as far as the next argument's memory")
    table[:] = 1
    gather_either[(1,)](behind, table, middle[8:], 4, 8)
    note("loads of one argument or the other")
    fill_both[(1,)](table[:4], behind, 16)
    note("stores as far as the next argument's memory")
    flags = memory.view(np.bool_)
    table, behind = (torch.from_numpy(flags[first : first + 8]) for first in (0, 8))
    table[:], behind[:] = True, True
    gather[(1,)](behind, table, 4, 99, 8)
    note("a load of booleans")


def races(table: torch.Tensor) -> None:
    fill_by_program[(4,)](middle, 1, 0)
    note("each its own")
    fill_by_program[(4,)](middle, 2, 7)
    note("the same by two")
    fill_by_program[(4,)](middle, 2, 0)
    note("other values by two")
    for step in (1, 4):
        fill_by_lane[(1,)](middle, step, 8)
        note(f"by lanes, {step} to a place")
    launch_memory.set_host([table])
    gather[(1,)](middle, table, 4, 8, 8)
    note("slots on the host")
    launch_memory.set_host([])
    gather[(1,)](middle, table, 4, 8, 8)
    note("slots on the device")
    launch_memory.set_dumps([middle[:2]])
    fill_by_program[(4,)](middle, 2, 0)
    note("other values where anything may be written")


def main() -> None:
    views()
    indices_of_rows()
    tables()
    loads()
    races(torch.from_numpy(memory.view(np.bool_)[:8]))
    print(json.dumps(notes))


if __name__ == "__main__":
    main()
