"""Segments of emulated graphs: captures that follow each other in one pool, with calls of Python between them."""

from __future__ import annotations

import pytest
import torch

from runners.engines.arena import Arena, within
from runners.engines.emulated import Graph

pytestmark = pytest.mark.emulated


def test_a_segment_reads_what_the_one_before_left_and_takes_its_memory_when_it_dies() -> None:
    pool, source, between, result = Arena(), torch.ones(64), torch.zeros(64), torch.zeros(64)
    first, second = Graph(), Graph()
    first.capture_begin(pool=pool, capture_error_mode="global")
    doubled = source * 2
    first.capture_end()
    second.capture_begin(pool=pool, capture_error_mode="global")
    total = doubled + between
    del doubled
    result.copy_(total * 3)  # a new tensor, in the memory of `doubled`
    second.capture_end()
    assert {place for place, _ in first._blocks} & {place for place, _ in second._blocks}, "no memory was used twice"
    for number in (1.0, 4.0):
        source.fill_(number)
        first.replay()
        between.fill_(10 * number)
        second.replay()
        assert result.tolist() == [3 * 12 * number] * 64


def test_a_capture_ends_once() -> None:
    graph = Graph()
    with pytest.raises(RuntimeError, match="capture_begin"):
        graph.capture_end()
    graph.capture_begin()
    graph.capture_end()
    graph.replay()


@pytest.mark.parametrize(
    ("stretches", "inside"),
    [
        ([(0, 100)], [(0, 20), (40, 10)]),
        ([(5, 15), (40, 60)], [(10, 10), (40, 10)]),
        ([(0, 10), (10, 10)], [(0, 20)]),
        ([], []),
    ],
)
def test_blocks_within_stretches(stretches: list[tuple[int, int]], inside: list[tuple[int, int]]) -> None:
    assert within([(10, 10), (0, 10), (40, 10)], stretches) == inside
