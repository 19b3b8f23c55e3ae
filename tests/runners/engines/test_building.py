"""Kernels that are built before they are asked for, where nothing was compiled yet."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runners.engines import building
from tests.builders.waiting import comes
from tests.runners.processes.test_pool import gone_within


class Spec:
    """A kernel of flashinfer whose building takes until a file beside it, "go", says that it may end."""

    is_aot = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def build(self, verbose: bool, need_lock: bool = False) -> None:
        assert need_lock, "two processes must not write the same files"
        self.path.with_suffix(".begun").write_text(f"{os.getpid()}")
        while not self.path.with_name("go").exists():
            time.sleep(0.02)
        self.path.write_text(f"{os.getpid()}")

    def build_and_load(self) -> Any:
        return "loaded"


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """TVM's FFI and flashinfer, as far as they are asked."""

    def build(name: str) -> None:
        Spec(tmp_path / name).build(False, need_lock=True)

    cpp, core, jit = ModuleType("tvm_ffi.cpp"), ModuleType("flashinfer.jit.core"), ModuleType("generators")
    vars(cpp).update(build=build, build_inline=build, load=str.upper, load_inline=str.upper)
    vars(core).update(JitSpec=Spec)
    vars(jit).update(gen=lambda name: Spec(tmp_path / name))
    for module in (cpp, core, jit):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for package in ("tvm_ffi", "flashinfer", "flashinfer.jit"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    return cpp


def test_kernels_are_built_side_by_side(libraries: ModuleType, tmp_path: Path) -> None:
    names = ("norm", "decode", "other")
    building.begin([("generators", "gen", (name,)) for name in names])
    assert comes(lambda: all((tmp_path / f"{name}.begun").exists() for name in names)), "none waits for another"
    (tmp_path / "go").touch()
    assert comes(lambda: all((tmp_path / name).exists() for name in names))


def test_what_is_begun_ends_with_the_process_that_began_it(libraries: ModuleType, tmp_path: Path) -> None:
    begun = tmp_path / "norm.begun"
    child = os.fork()
    if not child:
        building.begin([("generators", "gen", ("norm",))])
        comes(lambda: begun.exists() and bool(begun.read_text()))
        os._exit(0)
    os.waitpid(child, 0)
    assert gone_within(int(begun.read_text()), 30)
    assert [path.name for path in tmp_path.iterdir()] == [begun.name]


def test_a_rehearsal_begins_all_that_is_asked_for_and_leaves_nothing_behind(
    libraries: ModuleType, tmp_path: Path
) -> None:
    def run() -> None:
        module = libraries.load_inline("rope")
        assert module.rotate(1, 2) is None
        assert Spec(tmp_path / "plan").build_and_load().plan() is None
        libraries.load("store").write(3)
        (tmp_path / "went through").write_text("")
        raise RuntimeError("what has no kernels may raise")

    building.rehearse(run)
    assert (tmp_path / "went through").exists()
    assert not (tmp_path / "rope").exists(), "nobody waits for what is built"
    (tmp_path / "go").touch()
    assert comes(lambda: all((tmp_path / name).exists() for name in ("rope", "plan", "store")))
    assert libraries.load_inline("rope") == "ROPE"
    assert Spec(tmp_path / "plan").build_and_load() == "loaded"
    assert (tmp_path / "rope").read_text() != str(os.getpid())


def test_a_rehearsal_without_end_is_ended(libraries: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_REHEARSAL_S", 0.2)
    start = time.monotonic()
    building.rehearse(lambda: time.sleep(60))
    assert time.monotonic() - start < 2


def test_nothing_is_what_is_asked_of_it() -> None:
    assert building.Nothing().anything(1, two=3) is None
