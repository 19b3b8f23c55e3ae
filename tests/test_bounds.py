"""Stores of interpreted kernels: none lands outside of the memory that the kernel was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from python_path import in_front

from runners.targets.environments import PROJECT

pytestmark = pytest.mark.emulated
SCRIPT = Path(__file__).with_name("overflowing.py")


@pytest.fixture(scope="module")
def memory() -> dict[str, list[int]]:
    """What lay in 32 integers, of which kernels were given 8 to 23, after each of them."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": in_front(PROJECT)}
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, list[int]] = json.loads(ran.stdout)
    return told


def test_what_lies_outside_of_the_storage_is_lost(memory: dict[str, list[int]]) -> None:
    assert memory["past both ends"] == [0] * 8 + list(range(16)) + [0] * 8


def test_what_lies_past_a_view_is_written_as_far_as_its_storage_goes(memory: dict[str, list[int]]) -> None:
    """As in real memory: a row that overflows overwrites the next one."""
    assert memory["past a view"] == [0] * 8 + [-4, -3, -2, -1, *range(8)] + [0] * 12


def test_a_mask_still_holds(memory: dict[str, list[int]]) -> None:
    assert memory["masked"] == [0] * 20 + [12, 13, 14, 15] + [0] * 8


def test_every_tensor_that_was_given_may_be_written(memory: dict[str, list[int]]) -> None:
    """The second one ends where the first begins to be given: its last four stores are lost."""
    assert memory["of two, one too small"] == [0, 1, 2, 3] + [0] * 4 + list(range(8)) + [0] * 16


def test_an_address_out_of_a_table_is_used(memory: dict[str, list[int]]) -> None:
    assert memory["by address"] == [7] * 4 + [0] * 28
    assert memory["past both ends again"] == memory["past both ends"], "for that launch alone"
