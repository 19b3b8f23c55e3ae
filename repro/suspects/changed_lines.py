"""The lines in which a changed sglang and its base differ, for a person who looks for the one that matters."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

# Of a change of more files, or of so many lines that name a buffer, no line tells anything.
FILES_MAX, LINES_MAX = 40, 4
_FOLDERS = ("sglang/srt", "sglang/kernels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """gone: whether it is the base's, by its number there, and not here any more. here: the line of the changed file
    that it is, or that stands in its place; 0 if that file has none."""

    file: str
    number: int
    text: str
    gone: bool = False
    here: int = 0


def changed_lines(base: Path, tree: Path) -> list[Line]:
    """base, tree: import paths. Empty where too many files differ."""
    files = {
        path.relative_to(root) for root in (base, tree) for folder in _FOLDERS for path in (root / folder).rglob("*.py")
    }
    differing = [file for file in sorted(files) if not _same(base / file, tree / file)]
    return [line for file in differing for line in _of(file, base, tree)] if len(differing) <= FILES_MAX else []


def named(buffer: str, lines: Sequence[Line]) -> list[Line]:
    """The lines that name this buffer: those that are here, else those that are gone; none of them if they are many."""
    every = [line for line in lines if re.search(rf"\b{re.escape(buffer)}\b", line.text)]
    lasting = [line for line in every if not line.gone] or every
    return lasting if len(lasting) <= LINES_MAX else []


def naming(buffer: str, lines: Sequence[Line]) -> str:
    """In a sentence, the lines that name this buffer; empty if there are none, or many."""
    naming_lines = named(buffer, lines)
    if not naming_lines:
        return ""
    numbers: dict[str, list[str]] = {}
    for line in naming_lines:
        numbers.setdefault(line.file, []).append(str(line.number))
    places = "; ".join(f"{file}:{', '.join(of_file)}" for file, of_file in numbers.items())
    return f"Lines that the change {'removes' if naming_lines[0].gone else 'has'} and that name it: {places}."


def _same(left: Path, other: Path) -> bool:
    return left.is_file() and other.is_file() and filecmp.cmp(left, other)


def _of(file: Path, base: Path, tree: Path) -> Iterator[Line]:
    old, new = (_lines(root / file) for root in (base, tree))
    for tag, old_first, old_end, new_first, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            for n in range(new_first, new_end):
                yield Line(file=str(file), number=n + 1, text=new[n], here=n + 1)
            here = min(new_first + 1, len(new))
            for n in range(old_first, old_end):
                yield Line(file=str(file), number=n + 1, text=old[n], gone=True, here=here)


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
