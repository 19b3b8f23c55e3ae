"""Overlays: a whole sglang of which a few files are edited and all others are links to an installed release.

An overlay is an import path like a checkout's. It is made beside and renamed, so that it is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.upstream.edits import Edit, edited
from repro.upstream.rig import Contents

# Written last into an overlay, and what makes a checkout one.
MARKER = ".eagleeye-overlay.json"
_PART = ".part-"
NAME_MAX = 150  # characters of a folder's name, in which a checkout has its whole path
# Compiled forms of the release's own files: an overlay must neither read nor replace those of files that it edits.
_NOT_LINKED = ("__pycache__",)


class CannotMake(Exception):
    """There is no overlay to be made from this release. The text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The release that is under it, and what is different: "without #23037"."""

    release: str
    change: str

    def __str__(self) -> str:
        return f"{self.release} {self.change}"


def overlay_at(path: Path) -> Overlay | None:
    """The overlay at this import path, or None."""
    try:
        marker = json.loads((path / MARKER).read_text())
        return Overlay(release=str(marker["release"]), change=str(marker["change"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_overlay(source: Path, what: Overlay, edits: Sequence[Edit], overlays: Path) -> Path:
    """The overlay's import path, made under `overlays` if it is not there as these edits make it. source: the
    release's import path.

    CannotMake if a file is missing, EditNotFound if the place of an edit is; OSError if the disk refuses.
    """
    by_file: defaultdict[str, list[Edit]] = defaultdict(list)
    for edit in edits:
        by_file[edit.file].append(edit)
    contents = {file: edited(_read(source / file, what), edits_of) for file, edits_of in by_file.items()}
    return _made(
        source, what, contents, _marker(source, what, contents, edits=[asdict(edit) for edit in edits]), overlays
    )


def overlay_of(source: Path, what: Overlay, contents: Contents, overlays: Path) -> Path:
    """The same as make_overlay, with the texts of whole files; None: without that file. OSError if the disk refuses."""
    return _made(source, what, contents, _marker(source, what, contents), overlays)


def _made(source: Path, what: Overlay, contents: Contents, marker: str, overlays: Path) -> Path:
    path = overlays / re.sub(r"[^A-Za-z0-9.]+", "-", str(what)).strip("-")[-NAME_MAX:]
    if _is(path, marker):
        return path
    overlays.mkdir(parents=True, exist_ok=True)
    part = overlays / f"{_PART}{path.name}-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        _lay(source / "sglang", part / "sglang", {Path(file).relative_to("sglang"): t for file, t in contents.items()})
        write_text(part / MARKER, marker)
        _put(part, path, marker)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def _read(path: Path, what: Overlay) -> str:
    try:
        # As it is: universal newlines would make every line of a file another.
        return path.read_bytes().decode()
    except OSError as error:
        raise CannotMake(f"no overlay of {what}: {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CannotMake(f"no overlay of {what}: {path}: not UTF-8 text") from error


def _marker(source: Path, what: Overlay, contents: Contents, **more: object) -> str:
    """Says what the overlay is, and changes with everything that it is made from."""
    marker: dict[str, object] = {
        "release": what.release,
        "change": what.change,
        "source": str(source),
        "files": {file: hashlib.sha256((text or "").encode()).hexdigest() for file, text in contents.items()},
        "gone": sorted(file for file, text in contents.items() if text is None),
        # A checkout may get new files, which are linked in the folders that are not links themselves.
        "beside": hashlib.sha256("\n".join(_beside(source, contents)).encode()).hexdigest(),
    }
    marker |= more
    return json.dumps(marker, indent=1) + "\n"


def _beside(source: Path, files: Iterable[str]) -> list[str]:
    """All that is in the folders on the way to these files."""
    folders = {folder for file in files for folder in Path(file).parents if folder != Path()}
    inside = (path for folder in folders for path in (source / folder).glob("*"))
    return sorted(str(path) for path in inside if path.name not in _NOT_LINKED)


def _is(path: Path, marker: str) -> bool:
    try:
        return (path / MARKER).read_text() == marker
    except OSError:
        return False


def _lay(source: Path, to: Path, contents: Mapping[Path, str | None]) -> None:
    """A directory like `source`: links to all that is in it, but for these files, and for directories on the way."""
    to.mkdir(parents=True)
    present = {entry.name for entry in source.iterdir()} if source.is_dir() else set()
    for name in sorted((present | {path.parts[0] for path in contents}) - set(_NOT_LINKED)):
        inside = {Path(*path.parts[1:]): text for path, text in contents.items() if path.parts[0] == name}
        if Path() not in inside and inside:
            _lay(source / name, to / name, inside)
        elif not inside:
            (to / name).symlink_to((source / name).absolute())
        elif (text := inside[Path()]) is not None:
            (to / name).write_bytes(text.encode())


def _put(part: Path, path: Path, marker: str) -> None:
    """Give the finished overlay its name. Another process may do so at the same time, with the same contents."""
    old = part.with_name(f"{part.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    try:
        part.rename(path)
    except OSError:
        if not _is(path, marker):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
