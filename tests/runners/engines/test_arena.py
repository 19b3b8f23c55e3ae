"""The arena: blocks that are aligned and apart, freed ones joined again, and no byte given twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runners.engines.arena import ALIGNMENT, Arena, merged
from tests.builders.capturing import address

pytestmark = pytest.mark.emulated

BLOCK = torch.empty(ALIGNMENT // 4)


def blocks(arena: Arena, count: int) -> list[tuple[torch.Tensor, tuple[int, int]]]:
    return [arena.allocate(BLOCK) for _ in range(count)]


def test_blocks_are_aligned_apart_and_as_they_were_asked_for() -> None:
    arena = Arena(16 * ALIGNMENT)
    shapes = [torch.empty(3), torch.empty(2, 300).t(), torch.empty(0, 4), torch.empty((), dtype=torch.bool), BLOCK]
    tensors = [arena.allocate(shape) for shape in shapes]
    for like, (tensor, (offset, size)) in zip(shapes, tensors, strict=True):
        assert (tensor.dtype, tensor.shape, tensor.stride()) == (like.dtype, like.shape, like.stride())
        assert address(tensor) == arena.base + offset
        assert address(tensor) % ALIGNMENT == size % ALIGNMENT == 0
        assert size >= max(1, like.numel() * like.element_size())
        assert arena.holds(tensor) == bool(like.numel())
    places = sorted(block for _, block in tensors)
    assert all(offset + size <= after for (offset, size), (after, _) in itertools.pairwise(places))
    assert arena.high_water == sum(size for _, size in places)
    assert not arena.holds(BLOCK)


def test_freed_blocks_are_joined_whatever_the_order() -> None:
    arena = Arena(4 * ALIGNMENT)
    whole = torch.empty(4 * ALIGNMENT // 4)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2)):
        alive = dict(enumerate(blocks(arena, 4)))
        with pytest.raises(RuntimeError, match=r"CUDA out of memory: .* of 2048 bytes has no 512 left"):
            arena.allocate(BLOCK)
        for number in order:
            del alive[number]
        tensor, block = arena.allocate(whole)
        assert block == (0, 4 * ALIGNMENT)
        del tensor
    assert arena.high_water == 4 * ALIGNMENT


def test_the_first_hole_that_fits_is_taken() -> None:
    arena = Arena(8 * ALIGNMENT)
    alive = dict(enumerate(blocks(arena, 6)))
    del alive[1], alive[3], alive[4]
    wide = arena.allocate(torch.empty(2 * ALIGNMENT // 4))
    narrow = arena.allocate(BLOCK)
    assert [offset for _, (offset, _) in (wide, narrow)] == [3 * ALIGNMENT, ALIGNMENT]
    assert arena.high_water == 6 * ALIGNMENT


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_arena_never_gives_a_byte_twice(data: st.DataObject) -> None:
    room = 12
    arena = Arena(room * ALIGNMENT)
    alive: list[tuple[torch.Tensor, tuple[int, int]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        taken = {place for _, (offset, size) in alive for place in range(offset, offset + size, ALIGNMENT)}
        if data.draw(st.booleans()) and alive:
            alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            continue
        bytes_wanted = data.draw(st.integers(1, 5))
        free = [
            all((n + k) * ALIGNMENT not in taken for k in range(bytes_wanted)) for n in range(room - bytes_wanted + 1)
        ]
        like = torch.empty(bytes_wanted * ALIGNMENT, dtype=torch.uint8)
        if not any(free):
            with pytest.raises(RuntimeError, match="out of memory"):
                arena.allocate(like)
            continue
        alive.append(arena.allocate(like))
        assert alive[-1][1] == (free.index(True) * ALIGNMENT, bytes_wanted * ALIGNMENT)


def test_a_block_that_dies_while_another_is_sought() -> None:
    """Python may collect garbage at any moment; what that frees must not disturb the search."""
    arena = Arena(64 * ALIGNMENT)
    alive = dict(enumerate(blocks(arena, 4)))

    class Disturbed(list[tuple[int, int]]):
        def __iter__(self) -> Iterator[tuple[int, int]]:
            for hole in list(super().__iter__()):
                alive.pop(0, None)
                yield hole

    arena._free = Disturbed(arena._free)
    tensors = [block for _, block in blocks(arena, 2)] + [block for _, block in alive.values()]
    assert len(set(tensors)) == 5
    alive.clear()
    assert arena.allocate(torch.empty(64 * ALIGNMENT // 4))[1] == (0, 64 * ALIGNMENT)


def test_blocks_of_one_stretch_are_poisoned_together() -> None:
    assert merged([]) == []
    assert merged([(512, 512), (0, 512), (2048, 1024), (2048, 512), (0, 512)]) == [(0, 1024), (2048, 1024)]
    assert merged([(0, 2048), (512, 512), (2048, 512)]) == [(0, 2560)]
