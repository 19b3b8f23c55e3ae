"""The elements that an emulated launch reads, before or after it wrote them."""

from __future__ import annotations

import pytest
import torch

from runners.engines.emulated import noted
from runners.engines.touched import Touched, reads_rows, replayed
from tests.builders.capturing import captured

pytestmark = pytest.mark.emulated


def test_what_a_launch_reads_before_it_writes_it_is_told_from_the_rest() -> None:
    first, second, third = torch.zeros(4), torch.zeros(2, 3), torch.zeros(3)

    def program() -> list[torch.Tensor]:
        third[:2] = first[1:3]
        return [third + 1, second[:, 0] * 2]

    made, _ = captured(program)
    touched = Touched({"first": first, "second": second, "third": third})
    for _ in range(2):
        touched.forget()
        with noted(touched):
            made.replay()
        assert touched.read("first").tolist() == [False, True, True, False]
        assert touched.stale("first").tolist() == [False, True, True, False]
        assert touched.read("second").tolist() == [[True, False, False]] * 2
        assert touched.read("third").tolist() == [True] * 3
        assert touched.stale("third").tolist() == [False, False, True]
    touched.forget()
    made.replay()
    assert not any(touched.read(name).any() for name in ("first", "second", "third")), "nobody listens"


def test_addresses_are_split_among_tensors() -> None:
    whole = torch.zeros(12, dtype=torch.int64)
    left, right = whole[:4].view(2, 2), whole[8:]
    touched = Touched({"left": left, "right": right})
    with noted(touched):
        reads_rows(right, torch.tensor([0]))  # between two replays
    with noted(touched), replayed():
        reads_rows(left, torch.tensor([1]))
        # From behind the end of one into the other.
        reads_rows(whole.view(6, 2), torch.tensor([2, 4]))
    assert touched.read("left").tolist() == [[False, False], [True, True]]
    assert touched.read("right").tolist() == [True, True, False, False]


def test_a_column_of_a_table_is_read_by_its_rows() -> None:
    whole = torch.zeros(3, 4, dtype=torch.int64)
    touched = Touched({"whole": whole})
    with noted(touched), replayed():
        reads_rows(whole[:, 1:3], torch.tensor([0, 2]))
    assert touched.read("whole").tolist() == [[False, True, True, False], [False] * 4, [False, True, True, False]]
