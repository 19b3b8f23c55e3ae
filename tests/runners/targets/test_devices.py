"""The GPUs that we may use, as CUDA reads the caller's list, and who gets which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runners.targets import devices
from runners.targets.devices import Seats, spread, visible


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        (None, ("0", "1", "2", "3")),
        ("2,0", ("2", "0")),
        (" 3 , 1 ", ("3", "1")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,-1,2", ("1",)),
        ("1,4,2", ("1",)),
        ("1,1,2", ("1", "2")),
        ("GPU-1d0f,MIG-GPU-7/1/0,3", ("GPU-1d0f", "MIG-GPU-7/1/0", "3")),
        ("\u0663", ()),
    ],
)
def test_the_callers_list_is_read_as_cuda_reads_it(listed: str | None, devices: tuple[str, ...]) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible(4, environment) == devices


def test_a_machine_without_gpus_shows_none() -> None:
    assert visible(0, {}) == ()
    assert visible(0, {"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_workers_take_devices_in_turn() -> None:
    assert spread(5, ("3", "1")) == ["3", "1", "3", "1", "3"]
    assert spread(1, ("3", "1")) == ["3"]
    assert spread(2, ()) == ["", ""]


def test_places_of_different_devices_come_first_and_are_taken_again() -> None:
    seats = Seats(("a", "b"), 2)
    assert [seats.take() for _ in range(5)] == ["a", "b", "a", "b", None]
    seats.give_back("b")
    assert (len(seats), seats.take(), seats.take()) == (1, "b", None)


def test_a_gpu_is_what_the_drivers_tool_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in *memory*) echo 143771; echo "[N/A]";; *) echo NVIDIA H200; echo H200;; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    devices._asked.cache_clear()
    assert devices.gpus() == ("NVIDIA H200", "H200")
    assert [round(gibibytes, 1) for gibibytes in devices.memory()] == [140.4]
    tool.write_text("#!/bin/sh\necho no devices were found\nexit 9\n")
    devices._asked.cache_clear()
    assert devices.gpus() == ()
    assert devices.memory() == ()
    devices._asked.cache_clear()
