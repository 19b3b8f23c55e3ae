"""Bytecode of what lies in the cache: it is kept, shared by overlays, and never that of another state of a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from runners.processes.bytecode import FOLDER

_IMPORT = """
import sys
from pathlib import Path
from runners.processes import bytecode
bytecode.keep(Path(sys.argv[1]))
sys.path.insert(0, sys.argv[2])
import part.one, part.two
print(part.one.VALUE, part.two.VALUE, part.two.place.__code__.co_filename)
"""
_ONE, _TWO = "part/one.py", "part/two.py"


def _package(folder: Path) -> Path:
    for file in (_ONE, _TWO):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("VALUE = 1\n\n\ndef place():\n    return 0\n")
    return folder


def _imported(cache: Path, folder: Path) -> str:
    """The values that a process finds in the package in this folder, and the file of a function."""
    command = [sys.executable, "-c", _IMPORT, str(cache), str(folder)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def _kept(cache: Path) -> set[str]:
    return {path.parent.name + "/" + path.name.split(".")[0] for path in (cache / FOLDER).rglob("*.pyc")}


def test_a_release_leaves_its_bytecode_in_the_cache_alone_and_an_overlay_reads_it(tmp_path: Path) -> None:
    release, overlay = _package(tmp_path / "targets" / "0.5.13"), tmp_path / "overlays" / "mended"
    assert _imported(tmp_path, release) == f"1 1 {release / _TWO}"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / FOLDER).rglob("*.pyc")}
    assert _kept(tmp_path) == {"part/one", "part/two"} and not list((tmp_path / "targets").rglob("*.pyc"))
    (overlay / "part").mkdir(parents=True)
    (overlay / _ONE).write_text("VALUE = 2\n")
    (overlay / _TWO).symlink_to(release / _TWO)
    # The code of a linked file is the release's, under the overlay's name.
    assert _imported(tmp_path, overlay) == f"2 1 {overlay / _TWO}"
    further = [path for path in (tmp_path / FOLDER).rglob("*.pyc") if path not in kept]
    assert [path.name.split(".")[0] for path in further] == ["one"] and "mended" in str(further[0])
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_a_file_that_changes_within_a_second_is_compiled_again(tmp_path: Path) -> None:
    release = _package(tmp_path / "targets" / "0.5.13")
    assert _imported(tmp_path, release).startswith("1 1 ")
    before = (release / _ONE).stat()
    (release / _ONE).write_text((release / _ONE).read_text().replace("1", "3"))
    os.utime(release / _ONE, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert (release / _ONE).stat().st_size == before.st_size
    assert _imported(tmp_path, release).startswith("3 1 ")


def test_what_lies_elsewhere_is_left_to_python(tmp_path: Path) -> None:
    checkout = _package(tmp_path / "src")
    assert _imported(tmp_path / "cache", checkout).startswith("1 1 ")
    assert not list(tmp_path.rglob("*.pyc"))


def test_where_nothing_can_be_kept_the_import_goes_on(tmp_path: Path) -> None:
    release = _package(tmp_path / "targets" / "0.5.13")
    (tmp_path / FOLDER).write_text("in the way")
    assert _imported(tmp_path, release).startswith("1 1 ") and not list(tmp_path.rglob("*.pyc"))
