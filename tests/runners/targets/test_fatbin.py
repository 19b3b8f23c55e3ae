"""GPU code in a library: found as nvcc lays it out, and what a bundle carries of FlashAttention 3's."""

from __future__ import annotations

import lzma

import pytest

from runners.targets.bundle.archive import Member
from runners.targets.bundle.fatbin import Entry, NotALibrary, cut_down, entries
from runners.targets.bundle.flash_ops import carried, is_carried
from runners.targets.environments import NotUsable
from tests.builders.small_library import COMBINE, FORWARD, PREPARE, PTX, container, elf, flash_ops, library


def found(made: bytes) -> list[tuple[int, frozenset[str]]]:
    return [(entry.gpu, entry.kernels) for entry in entries(made)]


@pytest.mark.parametrize("gap", [0, 8, 64])
def test_every_entry_of_every_container_is_found(gap: int) -> None:
    made = library(container([(80, ["a"]), (90, ["a", "b"])]), container([(90, ["c"])]), gap=gap)
    assert found(made) == [(80, frozenset("a")), (90, frozenset("ab")), (90, frozenset("c"))]


def test_the_bytes_of_an_entry_are_its_own() -> None:
    made = library(container([(80, ["a"]), (90, ["b"])]))
    for entry in entries(made):
        code = made[entry.begin : entry.end]
        assert code.startswith(b"\x7fELF") and code.count(b"\x7fELF") == 1


def test_what_is_no_machine_code_has_no_kernels() -> None:
    assert found(library(container([(90, ["a"])], kind=PTX))) == [(90, frozenset())]


def test_what_is_not_wanted_is_zeros_and_all_else_as_it_was() -> None:
    made = library(container([(80, ["a"]), (90, ["b"])]), container([(90, ["c"])]))
    cut = cut_down(made, lambda entry: "b" in entry.kernels)
    assert len(cut) == len(made)
    kept = [entry for entry in entries(made) if "b" in entry.kernels]
    gone = [entry for entry in entries(made) if "b" not in entry.kernels]
    assert len(kept) == 1 and len(gone) == 2
    for entry in gone:
        assert not any(cut[entry.begin : entry.end])
    rest = bytearray(made)
    for entry in gone:
        rest[entry.begin : entry.end] = bytes(entry.end - entry.begin)
    assert cut == rest


def test_what_is_not_a_library_is_refused() -> None:
    whole = library(container([(90, ["a"])]))
    section = whole.index(b"\x50\xed\x55\xba")
    for made, words in (
        (b"text", "no 64-bit ELF file at 0"),
        (elf({".text": b"only the host's"}), "no section .nv_fatbin"),
        (whole[:200], "cut short"),
        (whole[:section] + b"else" + whole[section + 4 :], "no container"),
        (whole[: section + 24] + b"\xff\xff" + whole[section + 26 :], "longer than its container"),
    ):
        with pytest.raises(NotALibrary, match=words):
            cut_down(made, lambda entry: True)
    with pytest.raises(NotALibrary, match="of the wanted kind"):
        cut_down(whole, lambda entry: False)


@pytest.mark.parametrize(
    ("gpu", "kernels", "stays"),
    [
        (90, [FORWARD.format(gpu=90, dim=64, dtype="6half_t")], True),
        (90, [FORWARD.format(gpu=90, dim=64, dtype="10bfloat16_t")], True),
        (90, [FORWARD.format(gpu=90, dim=512, dtype="6half_t")], True),
        (90, [PREPARE, COMBINE], True),
        (80, [PREPARE], False),
        (80, [FORWARD.format(gpu=80, dim=64, dtype="6half_t")], False),
        (90, [FORWARD.format(gpu=90, dim=128, dtype="6half_t")], False),
        (90, [FORWARD.format(gpu=90, dim=64, dtype="12float_e4m3_t")], False),
        (90, [FORWARD.format(gpu=90, dim=dim, dtype="6half_t") for dim in (64, 128)], False),
    ],
)
def test_what_a_bundle_carries(gpu: int, kernels: list[str], stays: bool) -> None:
    assert is_carried(Entry(begin=0, end=1, gpu=gpu, kernels=frozenset(kernels))) == stays


def test_the_library_that_is_carried_is_as_long_and_packs_well() -> None:
    whole = flash_ops()
    member = Member(name="flash_ops.so", size=len(whole), mark="ab", read=lambda: whole)
    small = carried(member)
    assert len(small.read()) == small.size == len(whole)
    assert sum(any(small.read()[entry.begin : entry.end]) for entry in entries(whole)) == 4  # two dtypes, two shared
    assert len(lzma.compress(small.read())) < len(lzma.compress(whole)) / 3
    assert small.mark != member.mark, "an archive of the one is not an archive of the other"


def test_another_librarys_bytes_are_refused_when_they_are_read() -> None:
    member = carried(Member(name="flash_ops.so", size=4, mark="", read=lambda: b"text"))
    with pytest.raises(NotUsable, match=r"flash_ops\.so cannot be cut down"):
        member.read()
