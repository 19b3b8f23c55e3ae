"""Loads and stores of interpreted kernels: what lies outside of the memory that the kernel was given is neither read
nor written, and is a finding; so are what lies beside a view, two values for one place, and rows without a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from runners.targets.environments import PROJECT
from tests.builders.project import in_front

pytestmark = pytest.mark.emulated
SCRIPT = PROJECT / "tests" / "kernels" / "overflowing.py"


@pytest.fixture(scope="module")
def memory() -> dict[str, Any]:
    """The 32 integers after each kernel, of which kernels were given 8 to 23."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": in_front(PROJECT)}
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    memory: dict[str, Any] = json.loads(ran.stdout)
    return memory


def test_what_lies_outside_of_the_storage_is_lost(memory: dict[str, Any]) -> None:
    assert memory["past both ends"] == [0] * 8 + list(range(16)) + [0] * 8


def test_what_lies_past_a_view_is_written_as_far_as_its_storage_goes(memory: dict[str, Any]) -> None:
    """In real memory, too, a row that overflows overwrites the next one."""
    assert memory["past a view"] == [0] * 8 + [-4, -3, -2, -1, *range(8)] + [0] * 12


def test_a_mask_still_holds(memory: dict[str, Any]) -> None:
    assert memory["masked"] == [0] * 20 + [12, 13, 14, 15] + [0] * 8


def test_every_tensor_that_was_given_may_be_written(memory: dict[str, Any]) -> None:
    """The second one ends where the first begins to be given: its last four stores are lost."""
    assert memory["of two, one too small"] == [0, 1, 2, 3] + [0] * 4 + list(range(8)) + [0] * 16


def test_an_address_out_of_a_table_is_used(memory: dict[str, Any]) -> None:
    assert memory["by address"] == [7] * 4 + [0] * 28
    assert memory["past both ends again"] == memory["past both ends"], "for that launch alone"


def seen(memory: dict[str, Any], name: str) -> dict[str, Any]:
    touched: dict[str, Any] = dict(memory["seen of " + name])
    assert touched.pop("launches") == 1
    return touched


def test_stores_that_are_lost_are_seen(memory: dict[str, Any]) -> None:
    assert seen(memory, "past both ends") == {"store outside pointer in fill": [-8, 16]}
    assert seen(memory, "past a view") == {"store outside pointer in fill": [-8, 12]}
    assert seen(memory, "masked") == {"store outside pointer in fill": [16, 16]}
    assert seen(memory, "of two, one too small") == {"store outside second in fill_both": [4, 4]}
    assert seen(memory, "by address") == {}


def test_what_else_a_launch_is_given_is_held_to_its_memory_where_addresses_are_numbers(memory: dict[str, Any]) -> None:
    """The kernel that copies rows of all layers is such: the caches' addresses are in a table, places an argument."""
    for whose, beyond in (("view", "load outside the view of places"), ("storage", "load outside places")):
        assert seen(memory, f"by address, 4 places of a {whose}") == {}
        too_many = seen(memory, f"by address, 8 places of a {whose}")
        assert too_many == {f"{beyond} in fill_places_by_table": [4, 4]}


def test_what_lies_beside_a_view_is_seen_though_it_is_in_the_same_memory(memory: dict[str, Any]) -> None:
    beside = "beside a view, of the same storage"
    assert seen(memory, beside) == {"store outside the view of pointer in fill": [-4, 4]}
    assert memory[beside][8:16] == [-4, -3, -2, -1, 0, 1, 2, 3], "it is what a kernel would do"
    assert seen(memory, "beside a view, in another one") == {}, "who was given both may take either"
    few = "a view of too few indices"
    assert seen(memory, few) == {}, "it is as long as the batch of the capture needed"
    assert memory[few][8:10] == [3, 12]


def test_a_launch_has_as_many_programs_as_rows_that_begin(memory: dict[str, Any]) -> None:
    name = "another number of row starts than programs: kv_indptr in sum_of_row"
    assert seen(memory, "row starts, right") == {}
    assert seen(memory, "row starts, one too many") == {name: [4, 3]}
    short = {name: [2, 3], "load outside the view of kv_indptr in sum_of_row": [2, 2]}
    assert seen(memory, "row starts, one short") == short


def test_slots_that_rows_are_found_by_have_64_bits(memory: dict[str, Any]) -> None:
    assert seen(memory, "slots, torch.int64") == {}
    assert seen(memory, "slots, torch.int32") == {"KV slots of less than 64 bits: kv_indices in first_of_slot": [0, 1]}


def test_memory_of_the_host_is_out_of_reach(memory: dict[str, Any]) -> None:
    (name,) = seen(memory, "slots on the host")
    assert name.startswith("memory of the host: ") and name.endswith(" in gather")
    assert seen(memory, "slots on the device") == {}


def test_options_of_another_platform_are_refused(memory: dict[str, Any]) -> None:
    assert "unrecognised" in memory["option waves_per_eu"]
    assert "option num_warps" not in memory


def test_loads_past_the_end_are_seen_and_give_nothing(memory: dict[str, Any]) -> None:
    assert seen(memory, "a load that its mask keeps inside") == {}
    assert seen(memory, "a load past the end") == {"load outside table in gather": [8, 8]}
    assert seen(memory, "a load of what is empty") == {"load outside table in gather": [0, 0]}
    for name in ("a load that its mask keeps inside", "a load past the end"):
        assert memory[name][8:16] == [104, 105, 106, 107, 0, 0, 0, 0]


def test_another_arguments_memory_is_foreign(memory: dict[str, Any]) -> None:
    """Wherever the host's allocator put it: here right behind."""
    for first in (4, 8):
        name = f"a load from {first} on, as far as the next argument's memory"
        assert seen(memory, name) == {"load outside table in gather": [8, 8]}
        assert memory[name][8:16] == [1] * (8 - first) + [0] * first
    assert seen(memory, "a load of booleans") == {"load outside table in gather": [8, 8]}
    assert memory["a load of booleans"][2:4] == [0x01010101, 0]
    name = "stores as far as the next argument's memory"
    assert set(memory["seen of " + name]) == {
        "launches",
        "store outside first in fill_both",
        "store outside second in fill_both",
    }
    assert memory[name] == [*range(8), *range(8)] + [0] * 16
    name = "loads of one argument or the other"
    assert seen(memory, name) == {}, "nobody knows which of them a lane has"
    assert memory[name][8:16] == [1] * 4 + [0] * 4


def test_a_guard_band_is_nobodys_to_read(memory: dict[str, Any]) -> None:
    assert seen(memory, "a load of a guard band") == {"load outside table in gather": [8, 8]}


def test_two_programs_that_store_different_values_to_one_place_are_seen(memory: dict[str, Any]) -> None:
    assert seen(memory, "each its own") == {}
    assert seen(memory, "the same by two") == {}
    assert seen(memory, "other values by two") == {"two values stored to pointer in fill_by_program": [0, 16]}
    assert seen(memory, "other values where anything may be written") == {}
    assert memory["other values by two"][8:10] == [1, 3]


def test_lanes_of_one_store_to_one_place_are_seen(memory: dict[str, Any]) -> None:
    """Though it was recorded of a launch in which each had its own."""
    assert seen(memory, "by lanes, 1 to a place") == {}
    assert seen(memory, "by lanes, 4 to a place") == {"two values stored to pointer in fill_by_lane": [0, 16]}
    assert memory["by lanes, 4 to a place"][8:11] == [3, 7, 0]
