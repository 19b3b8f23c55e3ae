"""Overlays: a whole import path that differs from its release in the edited files alone, made whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from repro.upstream.edits import Edit, EditNotFound
from runners.targets import overlay
from runners.targets.environments import (
    MARKER,
    NotUsable,
    import_path,
    overlays_directory,
    own_environment,
    release_under,
    sglang_path,
    worker_environment,
)
from runners.targets.mended import counts_as, mended
from runners.targets.overlay import CannotMake, Overlay, make_overlay, overlay_at

WHAT = Overlay(release="0.5.13", change="without #7")
EDIT = Edit(file="sglang/srt/deep/runner.py", function="replay", old="rows.append(0)")
FILES = {
    "sglang/__init__.py": "",
    "sglang/version.py": "__version__ = '0.5.13'\n",
    "sglang/srt/__init__.py": "",
    "sglang/srt/other.py": "from sglang.srt.deep import runner\n",
    "sglang/srt/deep/__init__.py": "",
    "sglang/srt/deep/runner.py": "def replay():\n    rows = [1]\n    rows.append(0)\n    return rows\n",
    "sglang/srt/deep/beside.py": "HERE = __file__\n",
    "sglang/srt/far/kernel.cu": "// a kernel\n",
    "sglang/srt/deep/__pycache__/runner.cpython-311.pyc": "not this one",
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A small release in a cache."""
    path = tmp_path / "targets" / "0.5.13"
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    (path / MARKER).write_text(json.dumps({"release": "0.5.13"}))
    return path


def make(release: Path, tmp_path: Path, edits: Sequence[Edit] = (EDIT,)) -> Path:
    return make_overlay(release, WHAT, edits, tmp_path / "overlays")


def python(path: Path, program: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(path)}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_an_overlay_is_the_release_but_for_the_edited_file(release: Path, tmp_path: Path) -> None:
    path = make(release, tmp_path)
    assert path == tmp_path / "overlays" / "0.5.13-without-7"
    assert overlay_at(path) == WHAT
    assert str(WHAT) == "0.5.13 without #7"
    for name, text in FILES.items():
        if name == EDIT.file:
            assert (path / name).read_text() == text.replace("rows.append(0)", "pass")
            assert not (path / name).is_symlink()
        elif "__pycache__" in name:
            assert not (path / name).exists()
        else:
            assert (path / name).samefile(release / name)
    assert all((release / name).read_text() == text for name, text in FILES.items())


def test_a_process_imports_it_whole(release: Path, tmp_path: Path) -> None:
    path = make(release, tmp_path)
    program = "import sglang.srt.other as o, sglang.version as v; print(o.runner.replay(), v.__version__)"
    assert python(path, program) == "[1] 0.5.13"
    # Its compiled forms are its own.
    assert python(release, program) == "[1, 0] 0.5.13"
    assert python(path, program) == "[1] 0.5.13"


def test_one_that_is_there_is_not_made_again_and_an_old_one_is(release: Path, tmp_path: Path) -> None:
    path = make(release, tmp_path)
    made = (path / overlay.MARKER).stat().st_ino
    assert make(release, tmp_path) == path
    assert (path / overlay.MARKER).stat().st_ino == made
    another = Edit(file=EDIT.file, function="replay", old="[1]", new="[2]")
    assert make(release, tmp_path, [another]) == path
    assert "rows = [2]\n    rows.append(0)" in (path / EDIT.file).read_text()
    (release / EDIT.file).write_text(FILES[EDIT.file] + "# installed again\n")
    assert (make(release, tmp_path) / EDIT.file).read_text().endswith("# installed again\n")
    # A checkout may get files.
    (release / "sglang/srt/deep/new.py").write_text("")
    assert (make(release, tmp_path) / "sglang/srt/deep/new.py").is_symlink()
    assert [folder.name for folder in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("edit", "error", "reason"),
    [
        (
            Edit(file=EDIT.file, function="replay", old="rows.clear()"),
            EditNotFound,
            "'rows.clear()' is 0 times in replay",
        ),
        (Edit(file="sglang/srt/gone.py", function="f", old="x"), CannotMake, "no overlay of 0.5.13 without #7: "),
    ],
)
def test_what_cannot_be_edited_leaves_nothing_behind(
    edit: Edit, error: type[Exception], reason: str, release: Path, tmp_path: Path
) -> None:
    with pytest.raises(error) as refused:
        make(release, tmp_path, [EDIT, edit])
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "overlays").exists()


def test_one_that_was_interrupted_is_not_there(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(overlay, "write_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(release, tmp_path)
    assert list((tmp_path / "overlays").iterdir()) == []
    assert overlay_at(make(release, tmp_path)) == WHAT


def test_two_processes_may_make_the_same(release: Path, tmp_path: Path) -> None:
    """The slower one finds the name taken, by what it would have put there."""
    overlays = tmp_path / "overlays"
    path = make(release, tmp_path)
    marker = (path / overlay.MARKER).read_text()
    part = overlays / ".part-late"
    part.mkdir()
    rename = Path.rename

    def renamed_meanwhile(source: Path, to: Path) -> Path:
        moved = rename(source, to)
        if source == path:
            make(release, tmp_path)
        return moved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", renamed_meanwhile)
        overlay._put(part, path, marker)
    assert (path / EDIT.file).exists()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"release": "0.5.13", "without": "x"}'])
def test_a_checkout_is_no_overlay(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / overlay.MARKER).write_text(text)
    assert overlay_at(tmp_path) is None
    assert release_under(Target(str(tmp_path), "emulated")) == str(tmp_path)


def test_a_checkout_counts_as_a_release_and_is_mended_like_one(release: Path, tmp_path: Path) -> None:
    """Known issues go by releases, and a copy of one has its bugs."""
    checkout = release.rename(tmp_path / "checkout")
    target = Target(str(checkout), "emulated")
    assert counts_as(target) == ADAPTED[-1]
    (checkout / "sglang/_version.py").write_text("__version__ = version = '0.5.12.post1'\n")
    assert counts_as(target) == "0.5.12.post1" and counts_as(Target("0.5.13", "emulated")) == "0.5.13"
    place = checkout / "sglang/srt/speculative/spec_utils.py"
    place.parent.mkdir()
    (place.parent / "beside.py").write_text("")
    place.write_text("def get_src_tgt_cache_loc(src_cache_loc):\n    return torch.empty_like(src_cache_loc)\n")
    made = mended(target, ("#23037", "#26335"), tmp_path)
    assert made is not None and made.names == ("#26335",)
    over = Path(made.target.sglang)
    assert "torch.zeros_like" in (over / "sglang/srt/speculative/spec_utils.py").read_text()
    assert (over / "sglang/srt/speculative/beside.py").samefile(place.parent / "beside.py")
    # What it lacks is the checkout's, and it counts as the same release.
    assert import_path(made.target, tmp_path) == (over, checkout) and counts_as(made.target) == "0.5.12.post1"
    place.write_text("def get_src_tgt_cache_loc(src_cache_loc):\n    return torch.zeros_like(src_cache_loc)\n")
    assert mended(target, ("#23037", "#26335"), tmp_path) is None


def test_two_overlays_of_a_release_are_mended_side_by_side(release: Path, tmp_path: Path) -> None:
    """Each is run where it is mended: one that took the other's place would be judged by the other's bugs."""
    place = release / "sglang/srt/speculative/spec_utils.py"
    place.parent.mkdir()
    place.write_text("def get_src_tgt_cache_loc(src_cache_loc):\n    return torch.empty_like(src_cache_loc)\n")
    places = []
    for number in (1, 2):
        what = Overlay(release="0.5.13", change=f"bug {number}")
        edit = Edit(file=EDIT.file, function="replay", old="rows = [1]", new=f"rows = [{number}, {number}]")
        overlaid = make_overlay(release, what, [edit], tmp_path / "changes")
        made = mended(Target(str(overlaid), "emulated"), ("#26335",), tmp_path)
        assert made is not None
        places.append(Path(made.target.sglang))
    for number, path in enumerate(places, start=1):
        assert "torch.zeros_like" in (path / "sglang/srt/speculative/spec_utils.py").read_text()
        assert f"rows = [{number}, {number}]" in (path / EDIT.file).read_text()


def test_behind_an_overlay_goes_what_its_release_needs(release: Path, tmp_path: Path) -> None:
    target = Target(str(make(release, tmp_path)), "emulated")
    assert release_under(target) == "0.5.13"
    assert import_path(target, tmp_path) == (Path(target.sglang), release)
    assert sglang_path(target, tmp_path) == Path(target.sglang)
    assert worker_environment(target, tmp_path)["PYTHONPATH"].startswith(f"{target.sglang}:{release}:")


def test_an_overlay_of_a_bundled_release_has_the_bundle_behind_it(release: Path, tmp_path: Path) -> None:
    bundled = tmp_path / "sglang-0.5.12"
    release.rename(bundled)
    (tmp_path / "base").mkdir()
    what = Overlay(release="0.5.12", change="without #7")
    path = make_overlay(sglang_path(Target("0.5.12", "cuda"), tmp_path), what, [EDIT], tmp_path / "overlays")
    assert import_path(Target(str(path), "cuda"), tmp_path) == (path, bundled, tmp_path / "base")


def test_an_overlay_of_a_release_with_its_own_environment_runs_in_it(release: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environments" / "0.5.13"
    site = environment / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (release / "sglang").rename(site / "sglang")
    (environment / MARKER).write_text(json.dumps({"release": "0.5.13"}))
    of_release = Target("0.5.13", "cuda")
    assert sglang_path(of_release, tmp_path) == site
    overlays = overlays_directory(of_release, tmp_path)
    assert overlays != overlays_directory(Target("0.5.13", "emulated"), tmp_path)
    target = Target(str(make_overlay(site, WHAT, [EDIT], overlays)), "cuda")
    assert own_environment(target, tmp_path) == own_environment(of_release, tmp_path) is not None
    assert import_path(target, tmp_path) == (Path(target.sglang),)


def test_an_overlay_whose_release_is_gone_cannot_be_used(release: Path, tmp_path: Path) -> None:
    target = Target(str(make(release, tmp_path)), "emulated")
    (release / MARKER).unlink()
    with pytest.raises(NotUsable, match=r"sglang 0\.5\.13 is not installed; to install it: "):
        import_path(target, tmp_path)
