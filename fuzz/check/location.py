"""The line of sglang that is to blame for a cause, and the repository that it lies in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Target

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
    target: the checked tree, where that is no release. folders: repositories here, and their names there."""

    folder: str = ""
    target: str = ""
    folders: tuple[tuple[str, str], ...] = ()

    def elsewhere(self, text: str) -> str:
        """A text in which no repository has the name of this machine."""
        for here, there in self.folders:
            text = text.replace(here, there)
        return text

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


def names_of(target: Target, base: Target | None, source: Callable[[Target], Path]) -> Names:
    """The names for readers elsewhere of a target and what lies in it, and of its base."""
    if not target.is_checkout:
        return Names()
    root = repository(source(target))
    folder = source(target).relative_to(root)
    folders = [(str(root), f"./{root.name}")]
    if base and base.is_checkout and (other := repository(source(base))) != root:
        folders.append((str(other), f"./{other.name if other.name != root.name else 'base'}"))
    return Names(
        folder="" if folder == Path() else str(folder),
        target=str(Target(f"./{root.name / folder}", target.engine)),
        # One may lie in the other.
        folders=tuple(sorted(folders, key=lambda pair: -len(pair[0]))),
    )
