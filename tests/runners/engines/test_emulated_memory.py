"""The memory of emulated graphs: what CUDA graphs leave undefined and share is undefined and shared here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from runners.engines import launch_memory
from runners.engines.arena import ALIGNMENT, Arena
from runners.engines.emulated import Graph
from tests.builders.capturing import address, captured
from tests.builders.tensor_programs import Tensors

pytestmark = pytest.mark.emulated


@contextlib.contextmanager
def clean() -> Iterator[None]:
    Graph.poison = False
    try:
        yield
    finally:
        Graph.poison = True


FORGETFUL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(3) + x,
    "empty_like": lambda x: torch.empty_like(x) + x,
    "new_empty": lambda x: x.new_empty(3) + x,
    "empty_strided": lambda x: torch.empty_strided((3,), (2,)) + x,
    "resized": lambda x: torch.empty(2, 3)[1] + x,
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_what_was_never_written_shows_as_nan(name: str) -> None:
    x = torch.ones(3)
    made, [result] = captured(lambda: [FORGETFUL[name](x)])
    made.replay()
    assert result.isnan().all()


def test_half_written_shows_the_other_half() -> None:
    x = torch.ones(2)

    def program() -> Tensors:
        floats, integers = torch.empty(4), torch.empty(4, dtype=torch.int64)
        floats[:2] = x
        integers[2:] = 5
        return [floats, integers, torch.empty(2, dtype=torch.complex128)]

    made, [floats, integers, large] = captured(program)
    for _ in range(2):
        floats.zero_()
        made.replay()
        assert floats[:2].tolist() == [1, 1]
        assert floats[2:].isnan().all()
        assert integers.tolist() == [-1, -1, 5, 5]
        assert large.isnan().all()


def test_without_poison_memory_is_what_was_left_there() -> None:
    x = torch.ones(3)
    pool = Arena()
    made, [result] = captured(lambda: [torch.empty(3).add_(x)], pool)
    with clean():
        result.zero_()
        made.replay()
        assert result.tolist() == [1, 1, 1]
        made.replay()
        assert result.tolist() == [2, 2, 2], "the last replay's contents are still there"
    made.replay()
    assert result.isnan().all()


def test_a_reused_block_shows_no_earlier_contents() -> None:
    """`empty` in the middle of a graph, over memory that this very replay has just written and let go."""
    x = torch.ones(3)

    def program() -> Tensors:
        (x + 1).sum()
        return [torch.empty(3)]

    made, [result] = captured(program)
    made.replay()
    assert result.isnan().all()


def test_what_lies_behind_a_tensor_is_out_of_reach() -> None:
    """Every tensor might have an allocation of its own; kernels that go there fail the oracle `memory`."""
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="out of bounds"):
        captured(lambda: [(x + 1).as_strided((8,), (1,)) * 1.0])


def test_a_later_graph_gets_what_an_earlier_one_only_uses_inside() -> None:
    pool, x = Arena(), torch.ones(4)
    inside: list[int] = []

    def program() -> Tensors:
        halfway = x * 2
        inside.append(address(halfway))
        return [halfway + 1]

    first, [kept] = captured(program, pool)
    assert first.pool() is pool
    _, [later] = captured(lambda: [x - 1], first.pool())
    assert address(later) in inside
    assert address(later) != address(kept)
    assert pool.high_water == 2 * ALIGNMENT


def test_a_replay_overwrites_what_the_pool_gave_away() -> None:
    """The consumer that reads an output after another graph's replay gets what that one left."""
    pool, x = Arena(), torch.ones(4)
    first, _ = captured(lambda: [(x * 2) + 1], pool)
    second, [result] = captured(lambda: [x * 10], pool)
    second.replay()
    assert result.tolist() == [10] * 4
    first.replay()
    assert result.tolist() != [10] * 4
    second.replay()
    assert result.tolist() == [10] * 4


def test_an_output_that_was_let_go_is_handed_out_again_and_overwritten() -> None:
    pool, x = Arena(), torch.ones(4)
    first, [gone] = captured(lambda: [x + 41], pool)
    place = address(gone)
    view = gone[1:]
    del gone
    second, [beside] = captured(lambda: [x * 3], pool)
    assert address(beside) != place, "a view of it is still in use"
    del view
    third, [result] = captured(lambda: [x * 5], pool)
    assert address(result) == place
    third.replay()
    assert result.tolist() == [5] * 4
    first.replay()
    assert result.tolist() == [42] * 4
    second.replay()
    assert beside.tolist() == [3] * 4
    assert result.tolist() == [42] * 4


def test_without_a_shared_pool_nothing_is_overwritten() -> None:
    x = torch.ones(4)
    first, [result] = captured(lambda: [(x * 2) + 1])
    second, [two] = captured(lambda: [(x * 3) + 1])
    first.replay()
    second.replay()
    first.replay()
    assert (result.tolist(), two.tolist()) == ([3] * 4, [4] * 4)


BLOCK = torch.empty(ALIGNMENT // 4)


@pytest.mark.parametrize(
    ("starts", "reason"),
    [
        ([0, 2, 4], ""),
        ([-1, 2, 4], "qo_indptr 0 -1 0"),
        ([0, 3, 2], "qo_indptr 2 2 3"),
        ([0, 2, 5], "qo_indptr 2 5 4"),
    ],
)
def test_row_starts_that_cannot_be(starts: list[int], reason: str) -> None:
    """The kernel has four queries."""
    tensors = {"Q_Extend": torch.zeros(4, 1), "kv_indices": torch.zeros(9), "qo_indptr": torch.tensor(starts)}
    assert launch_memory._wrong_starts(tensors) == reason
