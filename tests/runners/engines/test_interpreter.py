"""Our interpreter against Triton's own: the same kernels on the same inputs give the same types, shapes and bits."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from repro.cases.case import Target
from runners.targets.environments import PROJECT, worker_environment
from tests.builders.project import in_front
from tests.kernels.again import RECORDED
from tests.kernels.of_programs import ONE_BY_ONE

SCRIPT = PROJECT / "tests" / "kernels" / "interpreted.py"
pytestmark = pytest.mark.emulated

Results = dict[str, list[str]]


def both(folder: Path, environment: dict[str, str], *words: str) -> tuple[Results, Results]:
    """The results of Triton's interpreter and of our own, by name."""
    command = [sys.executable, str(SCRIPT), str(folder), *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    plain, ours = (json.loads((folder / f"{name}.json").read_text()) for name in ("plain", "ours"))
    return plain, ours


def differences(plain: Results, ours: Results) -> list[str]:
    names = dict.fromkeys([*plain, *ours])
    return [f"{name}: {plain.get(name)} but {ours.get(name)}" for name in names if plain.get(name) != ours.get(name)]


@pytest.mark.exhaustive
def test_every_operation_gives_the_same_bits(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": in_front(PROJECT)})
    different = differences(plain, ours)
    assert not different, f"{len(different)} of {len(plain)}, as: " + "\n".join(different[:5])
    one_by_one = set(json.loads((tmp_path / "one-by-one.json").read_text()))
    assert one_by_one >= ONE_BY_ONE
    assert not one_by_one & {"parting", "shaped", "in_place", "uniform"}
    assert set(json.loads((tmp_path / "recorded.json").read_text())) >= RECORDED
    # It shows little if most of it cannot be done, or leaves a type out.
    done = [result for result in plain.values() if result[0] != "raised"]
    assert len(done) > 20_000
    assert Counter(result[1] for result in done).keys() >= {
        *("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"),
    }


@pytest.mark.parametrize(("name", "kind"), [("fp8e4nv", "float8_e4m3fn"), ("fp8e5", "float8_e5m2")])
def test_numbers_of_eight_bits_are_torchs(name: str, kind: str) -> None:
    eight_bits = importlib.import_module("runners.engines.triton.eight_bits")
    torch = importlib.import_module("torch")
    dtype, bits = getattr(torch, kind), eight_bits.EIGHT_BITS[name]
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    assert np.array_equal(bits.values, every, equal_nan=True)
    finite = np.sort(every[np.isfinite(every)])
    halfway = (finite[1:] + finite[:-1]) / 2
    drawn = np.random.default_rng(1).normal(size=20_000).astype(np.float32) * np.logspace(
        -8, 2, 20_000, dtype=np.float32
    )
    numbers = np.concatenate([every[~np.isinf(every)], halfway, np.nextafter(halfway, np.float32(0)), drawn])
    made = torch.from_numpy(numbers).to(dtype)
    assert np.array_equal(bits.values[bits.nearest(numbers)], made.float().numpy(), equal_nan=True)
    beyond = np.array([1e6, -1e6, np.inf], dtype=np.float32)
    assert bits.values[bits.nearest(beyond)].tolist() == [finite[-1], -finite[-1], finite[-1]]


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.10.post1", "0.5.15.post1")
@pytest.mark.parametrize("release", ["0.5.10.post1", "0.5.15.post1"])
def test_sglangs_kernels_give_the_same_bits(release: str, tmp_path: Path) -> None:
    plain, ours = both(tmp_path, worker_environment(Target(release, "emulated")), "sglang")
    assert differences(plain, ours) == []
    assert len(plain) == 32
    assert json.loads((tmp_path / "one-by-one.json").read_text()) == []
    # Something was computed: no result is all one byte, as a buffer nobody wrote to would be.
    assert all(len(set(bytes.fromhex(result[3]))) > 1 for name, result in plain.items() if "attention" in name)
