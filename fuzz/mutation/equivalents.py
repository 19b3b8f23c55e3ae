"""Mutants that change nothing that could be seen, each with its reason: a file that people add to.

An entry names file, function, the old and the new statement, so that it holds in every release that has the same code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutation.mutant import Mutant

FILE = Path(__file__).with_name("equivalents.toml")
Key = tuple[str, str, str, str]


class BadEquivalents(ValueError):
    """The file does not hold what it should. The text names the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalents:
    reasons: Mapping[Key, str]

    def reason(self, mutant: Mutant) -> str:
        """Why this one is equivalent; empty if nobody says so."""
        return self.reasons.get(mutant.key, "")


def read(path: Path = FILE) -> Equivalents:
    """BadEquivalents if an entry lacks a part, gives no reason or stands there twice."""
    return Equivalents(reasons=_reasons(tomllib.loads(path.read_text()).get("equivalent", ())))


def _reasons(entries: Iterable[Mapping[str, str]]) -> dict[Key, str]:
    reasons: dict[Key, str] = {}
    for entry in entries:
        missing = [name for name in ("file", "function", "old", "new", "reason") if not entry.get(name)]
        if missing:
            raise BadEquivalents(f"{entry.get('function', entry)}: no {' and no '.join(missing)}")
        key = (entry["file"], entry["function"], entry["old"], entry["new"])
        if key in reasons:
            raise BadEquivalents(f"{entry['function']}: {entry['new']!r} stands there twice")
        reasons[key] = entry["reason"]
    return reasons
