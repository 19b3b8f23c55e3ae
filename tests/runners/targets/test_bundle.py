"""Bundles as they are made: from cached wheels, whole or refused, the same bytes each time."""

from __future__ import annotations

import itertools
import lzma
import os
import random
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from runners.targets.bundle import archive
from runners.targets.bundle.archive import Member
from runners.targets.bundle.build import listed
from runners.targets.bundle.fatbin import cut_down
from runners.targets.bundle.flash_ops import is_carried
from runners.targets.bundle.pins import BASE, LEFT_OUT, NEWER_FLASHINFER, PARENT
from runners.targets.bundle.unpack import unpack
from runners.targets.bundle.wheels import Pin, fetch, find, members
from runners.targets.environments import NotUsable, import_path
from runners.targets.install import Ran
from runners.targets.packages import BUNDLED, directory
from tests.builders.small_library import flash_ops
from tests.builders.small_wheels import FRONT, SMALL, Index, make, small_index, wheel

pytestmark = pytest.mark.slow


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return small_index(monkeypatch)


def test_a_bundle_is_made(tmp_path: Path, index: Index) -> None:
    made, output = make(tmp_path, index, "0.5.13")
    assert index.asked == [SMALL, FRONT, PARENT, ("sglang==0.5.13",)]
    archives = ["base.tar.xz", "parent.tar.xz", "sglang-0.5.13.tar.xz"]
    assert sorted(path.name for path in made.iterdir()) == sorted([*archives, "bundle.json", "unpack.sh"])
    assert [line.split(":")[0] for line in output] == [str(made / name) for name in archives]


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path, index: Index) -> None:
    (tmp_path / "again").mkdir()
    first, two = (make(folder, index, "0.5.13")[0] for folder in (tmp_path, tmp_path / "again"))
    for name in ("base.tar.xz", "parent.tar.xz", "sglang-0.5.13.tar.xz", "bundle.json"):
        assert (first / name).read_bytes() == (two / name).read_bytes()


def test_wheels_and_archives_that_are_there_are_not_made_again(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    index.asked.clear()
    _, output = make(tmp_path, index, "0.5.11")
    assert index.asked == [("sglang==0.5.11",)]
    assert output[:2] == [f"{made / name}: already there" for name in ("base.tar.xz", "parent.tar.xz")]
    assert list(listed(made)) == ["base", "parent", "sglang-0.5.13", "sglang-0.5.11"], "a bundle grows"
    shutil.rmtree(tmp_path / "cache")
    (made / "base.tar.xz").write_bytes(b"cut short")
    assert "already there" not in make(tmp_path, index, "0.5.11")[1][0]
    assert unpack(made, tmp_path / "host") == ["base", "parent", "sglang-0.5.13", "sglang-0.5.11"]


def test_a_bundle_with_flash_attention_3_has_its_library_where_the_package_looks_for_it(
    tmp_path: Path, index: Index
) -> None:
    without, _ = make(tmp_path / "without", index, "0.5.13")
    made, _ = make(tmp_path, index, "0.5.13", fa3=True)
    assert listed(made)["base"]["made_from"] != listed(without)["base"]["made_from"]
    unpack(made, tmp_path / "host")
    there = tmp_path / "host" / "targets" / "base" / "sgl_kernel"
    assert sorted(path.name for path in there.iterdir()) == ["__init__.py", "flash_ops.abi3.so"]
    assert (there / "flash_ops.abi3.so").read_bytes() == cut_down(flash_ops(), is_carried)


def test_a_newer_flashinfer_lies_in_front_of_the_releases_that_need_it(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13", newer_flashinfer=True)
    unpack(made, tmp_path / "host")
    base = tmp_path / "host" / "targets" / "base"
    needed = [directory(text, base / BUNDLED) for text in NEWER_FLASHINFER]
    assert [path.relative_to(needed[0]) for path in needed[0].rglob("*") if path.is_file()] == [
        Path("flashinfer/__init__.py")
    ], "sources of kernels that no runner compiles stay out"
    for release, has in (("0.5.17", False), ("0.5.18", True), ("0.5.23", True)):
        (tmp_path / "host" / "targets" / f"sglang-{release}" / "sglang" / "srt").mkdir(parents=True)
        front = import_path(Target(release, "cuda"), tmp_path / "host")
        assert (set(needed) <= set(front)) == has


def test_what_pip_cannot_find_is_one_line_and_leaves_no_list(tmp_path: Path, index: Index) -> None:
    with pytest.raises(NotUsable, match=r"^pip knows no sglang 0\.5\.99 that fits Python 3\.12$"):
        make(tmp_path, index, "0.5.99")
    with pytest.raises(NotUsable, match="it has no sglang/srt"):
        make(tmp_path, index, "0.1")
    assert [path.name for path in (tmp_path / "cache" / "wheels").glob(".part*")] == []


def test_a_damaged_wheel_is_named(tmp_path: Path, index: Index) -> None:
    folder = tmp_path / "cache" / "wheels"
    folder.mkdir(parents=True)
    path = wheel(folder, "sglang-kernel==0.4.3")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(NotUsable, match=r"sglang_kernel-0\.4\.3-.*whl is not a complete wheel .* remove it and repeat"):
        make(tmp_path, index, "0.5.13")


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("pure_eval-0.2.4-py3-none-any.whl", True),
        ("pure_eval-0.2.4-py2.py3-none-any.whl", True),
        ("pure_eval-0.2.4-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("pure_eval-0.2.4-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("pure_eval-0.2.4-cp311-cp311-manylinux_2_17_x86_64.whl", False),
        ("pure_eval-0.2.4-cp312-cp312-manylinux_2_17_aarch64.whl", False),
        ("pure_eval-0.2.4-cp312-cp312-macosx_11_0_arm64.whl", False),
        ("pure_eval-0.2.41-py3-none-any.whl", False),
    ],
)
def test_only_wheels_for_the_hosts_python_are_taken(name: str, fits: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert (find(Pin("pure-eval", "0.2.4"), tmp_path) is not None) == fits


def test_what_pip_is_asked(tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []

    def pip(arguments: Sequence[str]) -> Ran:
        calls.append(arguments)
        wheel(Path(arguments[arguments.index("--dest") + 1]), "pure-eval==0.2.4")
        return Ran(code=0, output="")

    assert fetch([Pin("pure-eval", "0.2.4")], tmp_path, pip)[0].parent == tmp_path
    (words,) = calls
    assert list(words[:3]) == ["download", "--no-deps", "--only-binary=:all:"]
    assert words[words.index("--python-version") + 1] == "3.12"
    platforms = [word for before, word in itertools.pairwise(words) if before == "--platform"]
    assert "manylinux_2_34_x86_64" in platforms and "manylinux2014_x86_64" in platforms


def test_every_pin_is_exact_and_of_its_own() -> None:
    pins = [Pin.parse(text) for text in (*BASE, *PARENT)]
    assert all(pin.version and pin.version[0].isdecimal() for pin in pins)
    assert len({pin.name for pin in pins}) == len(pins) > 50
    assert LEFT_OUT.keys() <= {"sglang", NEWER_FLASHINFER[0], *(pin.name for pin in pins)}


def test_a_later_wheel_wins(tmp_path: Path) -> None:
    first, second = (tmp_path / f"{name}-1-py3-none-any.whl" for name in "ab")
    for path, text in ((first, "one"), (second, "two")):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("shared.py", text)
    names = members([Pin("a", "1"), Pin("b", "1")], [first, second])
    assert names["shared.py"].read() == b"two"


def test_an_archive_of_many_blocks_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BLOCK", 10_000)
    noise = random.Random(7).randbytes(100_000)
    members = [
        Member(name="noise", size=len(noise), mark="", read=lambda: noise, executable=True),
        Member(name="folder/empty", size=0, mark="", read=lambda: b""),
    ]
    for threads in (1, 3):
        path = tmp_path / f"{threads}.tar.xz"
        archive.write(path, members, threads=threads)
        archive.read(path, tmp_path / str(threads), files_max=2, bytes_max=100_000)
        assert (tmp_path / str(threads) / "noise").read_bytes() == noise
        assert os.access(tmp_path / str(threads) / "noise", os.X_OK)
        assert not os.access(tmp_path / str(threads) / "folder" / "empty", os.X_OK)
    assert (tmp_path / "1.tar.xz").read_bytes() == (tmp_path / "3.tar.xz").read_bytes()
    assert len(lzma.decompress((tmp_path / "1.tar.xz").read_bytes())) > 100_000
