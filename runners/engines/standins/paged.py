"""Page tables as attention kernels read them: numbers from a place of memory on, and the KV slots of some pages.

What lies outside of the memory, or on a page that the cache does not have, is foreign memory on real hardware. Here it
is reported, and there are no slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runners.engines import launch_memory, touched
from runners.engines.guards import band_bytes
from runners.engines.standins.dense import memory_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names that a kernel has for itself, its page table and its cache."""

    kernel: str
    table: str
    cache: str


def numbers(tensor: torch.Tensor, first: int, count: int, kernel: str, name: str) -> torch.Tensor | None:
    """So many numbers from a place behind a tensor's beginning on, whatever its shape; None if some are outside."""
    memory = memory_from(tensor)
    end = memory.numel() - band_bytes(tensor.untyped_storage()) // tensor.element_size()
    if first + count > end:
        launch_memory.report(f"load outside {name} in {kernel}", max(first, end), memory.numel())
        return None
    touched.reads(memory[first : first + count])
    return memory[first : first + count]


def slots_of(table: torch.Tensor, first: int, length: int, pages: int, size: int, names: Names) -> torch.Tensor | None:
    """The KV slots of a sequence of `length` tokens, whose row of the page table begins at `first`. pages: those of the
    cache, each of `size` tokens. None if some of it is foreign memory."""
    row = numbers(table, first, -(-length // size), names.kernel, names.table)
    if row is None:
        return None
    entries = row.long()
    outside = (entries < 0) | (entries >= pages)
    if outside.any():
        launch_memory.report(
            f"load outside {names.cache} in {names.kernel}", int(entries[outside][0]) * size, pages * size
        )
        return None
    return (entries[:, None] * size + torch.arange(size)).view(-1)[:length]
