"""Packages that workers would import older than their release pins: an error, or a row that says why it does no
harm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED, NEWEST
from repro.cases.releases import in_range
from runners.targets import packages, pinned
from runners.targets.bundle.pins import BASE, IN_FRONT, NEWER_FLASHINFER
from runners.targets.environments import differences, lacks, sglang_path
from runners.targets.install import Ran, install

# PyTorch of the image that bundles are made for.
HOST = {"torch": "2.11.0+cu130", "triton": "3.6.0"}
PYTHON = Path("/usr/bin/python3")


def said(required: Sequence[str], numbers: dict[str, str], release: str = NEWEST, engine: str = "cuda") -> str:
    return pinned.complaint(release, engine, pinned.older(required, numbers, release, engine), PYTHON)


@pytest.mark.parametrize(
    ("required", "version", "wrong"),
    [
        ("transformers==5.19.0", "5.17.0", True),
        ("transformers==5.19.0", "5.19.0", False),
        ("transformers==5.19.0", "5.21.0", False),  # whatever is newer is no case for this check
        ("transformers>=5.19", "5.17.0", True),
        ("transformers~=5.19.0", "5.17.0", True),
        ("transformers==5.19.*", "5.17.0", True),
        ("transformers==5.*", "5.17.0", False),
        ("transformers[torch]<6,>=5.18", "5.17.0", True),
        ("transformers", "5.17.0", False),
        ("transformers==5.19.0; extra == 'all'", "5.17.0", False),
        ("transformers==5.19.0; python_version < '3'", "5.17.0", False),
        ("not a requirement at all", "5.17.0", False),
    ],
)
def test_what_is_older_than_pinned_is_told(required: str, version: str, wrong: bool) -> None:
    text = said([required], {"transformers": version})
    assert bool(text) == wrong, text
    assert "\n" not in text


def test_the_line_has_the_command_that_helps() -> None:
    assert said(["transformers==5.19.0"], {"transformers": "5.17.0"}) == (
        f"sglang {NEWEST} pins transformers==5.19.0, and its workers would import 5.17.0: what fails then may not be "
        "sglang's. To mend it: /usr/bin/python3 -m pip install transformers==5.19.0"
    )


@pytest.mark.parametrize(
    ("engine", "requirement", "remedy"),
    [
        ("cuda", "transformers>=5.19", f"python -m runners bundle OUT {NEWEST}, which brings it; unpack that"),
        # No bundle brings them: to make it again would not help.
        ("cuda", "transformers>=6", f"python -m runners environment {NEWEST}, where there is a package index"),
        ("cuda", "torch==2.14.1", f"python -m runners environment {NEWEST}, where there is a package index"),
        ("emulated", "transformers>=5.19", f"make setup, and python -m runners install {NEWEST}, where there is a pa"),
    ],
)
def test_where_a_bundle_was_unpacked_the_remedy_is_one_that_helps(engine: str, requirement: str, remedy: str) -> None:
    older = pinned.older([requirement], {"transformers": "5.7.0", "torch": "2.10.0"}, NEWEST, engine)
    assert f"To mend it: {remedy}" in pinned.complaint(NEWEST, engine, older, None)


@pytest.mark.parametrize(
    ("release", "engine", "version", "wrong"),
    [
        ("0.5.21", "emulated", "5.8.1", False),
        ("0.5.21", "emulated", "5.7.0", True),  # older than what was tried
        ("0.5.22", "emulated", "5.8.1", True),  # of another release
        ("0.5.24.dev3+g12", "emulated", "5.8.1", True),
        ("a branch", "emulated", "5.8.1", True),  # counts as the newest
    ],
)
def test_a_row_declares_what_was_tried(release: str, engine: str, version: str, wrong: bool) -> None:
    assert bool(said(["transformers==5.12.1"], {"transformers": version}, release, engine)) == wrong


def test_native_code_is_not_compared_where_stand_ins_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache into which a bundle was unpacked."""
    required = {"sglang-kernel": "0.4.10", "flashinfer_python": "0.7.2", "apache-tvm-ffi": "0.1.9"}
    bundled = {"sglang-kernel": "0.4.3", "flashinfer-python": "0.6.12", "apache-tvm-ffi": "0.1.9"}
    unpacked = tmp_path / "targets" / f"sglang-{NEWEST}"
    (unpacked / "sglang" / "srt").mkdir(parents=True)
    lines = [f"Requires-Dist: {name}=={version}" for name, version in required.items()]
    for folder, (name, version), more in (
        (unpacked, ("sglang", NEWEST), lines),
        *((tmp_path / "targets" / "base", distribution, []) for distribution in bundled.items()),
    ):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("\n".join([f"Name: {name}", f"Version: {version}", *more, ""]))
    monkeypatch.setattr("runners.targets.environments.engine_lacks", lambda *_: "")
    monkeypatch.setattr("runners.targets.environments.device_lacks", lambda *_: "")
    for engine in ("emulated", "cuda"):
        target = Target(NEWEST, engine)
        native = {name: version for name, version in bundled.items() if name != "apache-tvm-ffi"}
        assert {older.name: older.version for older in differences(target, tmp_path)} == native
        assert lacks(target, tmp_path) == ""
    older = tmp_path / "targets" / "base" / "apache_tvm_ffi-0.1.9.dist-info"
    (older / "METADATA").write_text("Name: apache-tvm-ffi\nVersion: 0.1.8\n")
    assert lacks(Target(NEWEST, "emulated"), tmp_path).endswith(
        f"To mend it: make setup, and python -m runners install {NEWEST}, where there is a package index"
    )


@pytest.mark.emulated("0.5.18")
@pytest.mark.parametrize("version", ["0.6.12", "99", ""])
def test_what_is_older_here_is_told_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    if version:
        info = tmp_path / f"flashinfer_python-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: flashinfer-python\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(sglang_path(Target("0.5.18", "emulated"))))
    line = "flashinfer-python 0.6.12 where flashinfer-python==0.6.17 is pinned"
    assert pinned.older_here("flashinfer-python") == (line if version == "0.6.12" else "")


def test_what_is_absent_is_no_older_version() -> None:
    assert said(["transformers==5.19.0"], {}) == ""


def test_a_target_is_asked_before_its_first_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(arguments: Sequence[str]) -> Ran:
        place = Path(arguments[arguments.index("--target") + 1])
        (place / "sglang" / "srt").mkdir(parents=True)
        info = place / "sglang-0.5.13.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.13\nRequires-Dist: packaging>=999\n")
        return Ran(code=0, output="")

    install("0.5.13", tmp_path, pip=pip)
    target = Target("0.5.13", "emulated")
    monkeypatch.setattr("runners.targets.environments.engine_lacks", lambda *_: "")
    assert lacks(target, tmp_path).startswith("sglang 0.5.13 pins packaging>=999, and its workers would import ")
    assert [str(older).split(" where ")[1] for older in differences(target, tmp_path)] == ["packaging>=999 is pinned"]
    checkout = tmp_path / "targets" / "0.5.13"
    assert "packaging>=999" in lacks(Target(str(checkout), "emulated"), tmp_path)
    assert lacks(Target("clean", "toy"), tmp_path) == ""


@pytest.mark.emulated
@pytest.mark.parametrize("release", [pytest.param(each, marks=pytest.mark.emulated(each)) for each in ADAPTED])
def test_all_that_is_older_here_and_in_a_bundle_is_declared(release: str) -> None:
    """And no row speaks of what no longer is."""
    target = Target(release, "emulated")
    assert lacks(target) == ""
    required = packages.required(sglang_path(target))
    row = packages.overlay(release)
    in_front = IN_FRONT if row.requirements else ()
    bundle = HOST | dict(text.split("==") for text in (*BASE, *in_front))
    assert said(required, bundle, release) == ""
    in_bundle, emulated = (tuple(pinned.older(required, bundle, release, engine)) for engine in ("cuda", "emulated"))
    # Its PyTorch is that of the host, which was not tried with every release.
    assert {older.name for older in emulated if older.declared is None} <= {"torch"}
    used = {older.declared for older in (*in_bundle, *emulated, *differences(target))} - {None}
    assert used == {row for row in pinned.DIFFERENCES if row.releases in _ranges(release)}


def _ranges(release: str) -> set[str]:
    return {row.releases for row in pinned.DIFFERENCES if in_range(row.releases, release)}


def test_a_bundle_brings_what_the_newest_wants_in_front() -> None:
    newest = packages.overlay(NEWEST)
    assert set(IN_FRONT) <= set(newest.requirements)
    assert set(NEWER_FLASHINFER) <= {*newest.requirements, *newest.bundled}
    assert not set(IN_FRONT) & set(BASE)
