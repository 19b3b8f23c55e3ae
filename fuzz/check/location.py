"""The line of sglang that is to blame for a cause, and the repository that it lies in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# As traces write a line: sglang/srt/a.py:12 in replay.
_PLACE = re.compile(r"(sglang/[\w./-]+\.py):([1-9][0-9]{0,6})(?![0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """file: below sglang's import path. line: from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names that a reader on another machine has. folder: sglang's import path below the root of its repository.
    target: the checked tree, where that is no release."""

    folder: str = ""
    target: str = ""

    def path(self, location: Location) -> str:
        """The file below the root of its repository."""
        return f"{self.folder}/{location.file}" if self.folder else location.file


def location(place: str) -> Location | None:
    """The line that a trace's text names; None if it names none of sglang."""
    match = _PLACE.match(place)
    if match is None or ".." in match[1].split("/"):
        return None
    return Location(file=match[1], line=int(match[2]))


def repository(source: Path) -> Path:
    """The root of the repository that an import path lies in. Without git's folder: the parent of a folder named
    python, as sglang's repository has it, else the import path itself."""
    root = next((folder for folder in (source, *source.parents) if (folder / ".git").exists()), None)
    return root or (source.parent if source.name == "python" else source)
