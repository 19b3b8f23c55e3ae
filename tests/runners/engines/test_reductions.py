"""Extreme values among some that are not numbers, as a GPU compares them two at a time."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

NAN, INF = float("nan"), float("inf")


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("values", "most", "least"),
    [
        ([1.0, 3.0, 2.0], 1, 0),
        ([3.0, NAN, 1.0, 2.0], 3, 2),
        ([3.0, 1.0, NAN], 2, 2),
        # A row of NaN in a block that is longer: the first place of its padding, beyond the row.
        ([NAN, NAN, -INF, -INF], 2, 2),
        ([-INF, NAN, -INF], 2, 2),
        ([INF, NAN, INF, INF], 2, 2),
    ],
)
def test_what_lies_behind_the_last_nan_decides(values: list[float], most: int, least: int) -> None:
    reductions: Any = importlib.import_module("runners.engines.triton.reductions")
    rows = np.array([values, sorted(range(len(values)))], dtype=np.float32)
    for place, smallest in ((most, False), (least, True)):
        arguments = {"axis": 1, "least": smallest}
        winners = reductions.place_of(rows, keepdims=False, **arguments)
        assert winners.tolist() == [place, 0 if smallest else len(values) - 1]
        assert np.array_equal(
            reductions.value_at(rows, keepdims=True, **arguments), rows[[0, 1], winners][:, None], equal_nan=True
        )
        assert reductions.place_of(rows.T, axis=0, keepdims=True, least=smallest).tolist() == [winners.tolist()]
