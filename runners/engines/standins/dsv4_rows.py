"""Rows of DeepSeek-V4's caches, as its compiled kernels keep them, on CPU tensors.

A page of attention's cache has the data of all its tokens, 448 numbers of eight bits and 64 in bfloat16 each, and then
their scales, a power of two for each 64 numbers; one of the indexer's has 128 numbers of eight bits a token, and then a
float32 each. Rows outside of the cache are foreign memory on real hardware: here they are reported, and skipped.
"""

from __future__ import annotations

import torch

from runners.engines import launch_memory

SIZE, ROTARY, TILE = 512, 64, 64
PLAIN = SIZE - ROTARY
# Bytes of a token's data, and of its scales, of which the last is not used.
DATA, SCALES = PLAIN + 2 * ROTARY, PLAIN // TILE + 1
INDEXED = 128
_LEAST, _MOST, _EIGHT = 1e-4, 448.0, torch.float8_e4m3fn


def put(cache: torch.Tensor, page_size: int, slots: torch.Tensor, rows: torch.Tensor, kernel: str) -> None:
    """Write rows, float32 [n, 512] or [n, 128], to attention's or to the indexer's cache, bytes [pages, bytes]. Rows of
    negative slots are no one's."""
    kept = _within(slots, len(cache) * page_size, kernel)
    rows, slots = rows[kept], slots[kept].long()
    if not len(rows):
        return
    if rows.shape[-1] == INDEXED:
        data, scales = _views(cache, page_size, INDEXED, 4)
        each = rows.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _MOST
        _put(data, slots, page_size, _eight_bits(rows / each))
        _put(scales, slots, page_size, each.contiguous().view(torch.uint8))
        return
    data, scales = _views(cache, page_size, DATA, SCALES)
    tiles = rows[:, :PLAIN].unflatten(-1, (-1, TILE))
    exponents = _exponents(tiles.abs().amax(-1).clamp(min=_LEAST) / _MOST)
    plain = _eight_bits((tiles / _powers(exponents)[..., None]).flatten(1))
    rotary = rows[:, PLAIN:].to(torch.bfloat16).contiguous().view(torch.uint8)
    _put(data, slots, page_size, torch.cat((plain, rotary), -1))
    _put(scales[..., : SCALES - 1], slots, page_size, exponents)


def get(cache: torch.Tensor, page_size: int, slots: torch.Tensor) -> torch.Tensor:
    """Rows of attention's cache, float32 [n, 512]; the slots lie within."""
    data, scales = _views(cache, page_size, DATA, SCALES)
    page, place = slots // page_size, slots % page_size
    row = data[page, place]
    tiles = row[:, :PLAIN].contiguous().view(_EIGHT).float().unflatten(-1, (-1, TILE))
    plain = (tiles * _powers(scales[page, place][:, : SCALES - 1])[..., None]).flatten(1)
    return torch.cat((plain, row[:, PLAIN:].contiguous().view(torch.bfloat16).float()), -1)


def _within(slots: torch.Tensor, count: int, kernel: str) -> torch.Tensor:
    outside = slots >= count
    if outside.any():
        launch_memory.report(f"store outside the cache in {kernel}", int(slots[outside][0]), count)
    return (slots >= 0) & ~outside


def _views(cache: torch.Tensor, page_size: int, data: int, scales: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[pages, page size, data] and [pages, page size, scales] of a cache of bytes, whatever its second dimension."""
    size, start = cache.stride(0), cache.storage_offset()
    shape = len(cache), page_size
    return (
        cache.as_strided((*shape, data), (size, data, 1), start),
        cache.as_strided((*shape, scales), (size, scales, 1), start + page_size * data),
    )


def _put(view: torch.Tensor, slots: torch.Tensor, page_size: int, rows: torch.Tensor) -> None:
    view[slots // page_size, slots % page_size] = rows


def _eight_bits(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-_MOST, _MOST).to(_EIGHT).view(torch.uint8)


def _exponents(scales: torch.Tensor) -> torch.Tensor:
    """The exponents, as bytes, of the smallest powers of two that are no less."""
    bits = scales.contiguous().view(torch.int32)
    return ((bits >> 23 & 0xFF) + (bits & 0x7FFFFF).ne(0)).to(torch.uint8)


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    return (exponents.int() << 23).view(torch.float32)
