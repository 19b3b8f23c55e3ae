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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.upstream.edits import Edit, edited

# Written last into an overlay, and what makes a checkout one.
MARKER = ".eagleeye-overlay.json"
_PART = ".part-"
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
    """What overlay this import path is; None if it is none."""
    try:
        told = json.loads((path / MARKER).read_text())
        return Overlay(release=str(told["release"]), change=str(told["change"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_overlay(source: Path, what: Overlay, edits: Sequence[Edit], overlays: Path) -> Path:
    """The overlay's import path, made under `overlays` if it is not there as these edits make it. source: the
    release's import path.

    CannotMake if a file is missing, NotThere if the place of an edit is; OSError if the disk refuses.
    """
    by_file: defaultdict[str, list[Edit]] = defaultdict(list)
    for edit in edits:
        by_file[edit.file].append(edit)
    contents = {file: edited(_read(source / file, what), made) for file, made in by_file.items()}
    marker = _marker(source, what, edits, contents)
    path = overlays / re.sub(r"[^A-Za-z0-9.]+", "-", str(what))
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


def _marker(source: Path, what: Overlay, edits: Sequence[Edit], contents: dict[str, str]) -> str:
    """Says what the overlay is, and changes with everything that it is made from."""
    told = {
        "release": what.release,
        "change": what.change,
        "source": str(source),
        "files": {file: hashlib.sha256(text.encode()).hexdigest() for file, text in contents.items()},
        "edits": [asdict(edit) for edit in edits],
    }
    return json.dumps(told, indent=1) + "\n"


def _is(path: Path, marker: str) -> bool:
    try:
        return (path / MARKER).read_text() == marker
    except OSError:
        return False


def _lay(source: Path, to: Path, contents: dict[Path, str]) -> None:
    """A directory like `source`: links to all that is in it, but for these files, and for directories on the way."""
    to.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if entry.name in _NOT_LINKED:
            continue
        inside = {Path(*path.parts[1:]): text for path, text in contents.items() if path.parts[0] == entry.name}
        if Path() in inside:
            (to / entry.name).write_bytes(inside[Path()].encode())
        elif inside:
            _lay(entry, to / entry.name, inside)
        else:
            (to / entry.name).symlink_to(entry.absolute())


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
