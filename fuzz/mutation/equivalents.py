"""Mutants that change nothing that could be seen, each with its reason: two files that people add to.

An entry names file, function, the old and the new statement, so that it holds in every release that has the same code.
A family names what its mutants have in common, as regular expressions, where one reason holds for all of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.mutation.mutant import Mutant

FILE = Path(__file__).with_name("equivalents.toml")
FAMILIES = Path(__file__).with_name("families.toml")
Key = tuple[str, str, str, str]
# What a family may ask of a mutant, each the whole of it: `part` is what is replaced, `text` what stands in its place.
ASKED = ("file", "function", "operator", "part", "text", "old", "new")
# Where kernels lie since 0.5.16, and where they lay before: what holds for one holds for the other.
_MOVED = {
    "sglang/kernels/ops/attention/": "sglang/srt/layers/attention/triton_ops/",
    "sglang/kernels/ops/kvcache/": "sglang/srt/mem_cache/triton_ops/",
    "sglang/kernels/ops/speculative/": "sglang/srt/speculative/triton_ops/",
}


class BadEquivalents(ValueError):
    """A file does not hold what it should. The text names the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """patterns: a regular expression for each attribute of a mutant that is asked."""

    patterns: Mapping[str, re.Pattern[str]]
    reason: str

    def has(self, mutant: Mutant) -> bool:
        return all(pattern.fullmatch(getattr(mutant, name).strip()) for name, pattern in self.patterns.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalents:
    reasons: Mapping[Key, str]
    families: tuple[Family, ...] = ()

    def reason(self, mutant: Mutant) -> str:
        """The reason why the mutant is equivalent; empty without one."""
        return next((reason for same in _everywhere(mutant) for reason in self._reasons(same)), "")

    def _reasons(self, mutant: Mutant) -> Iterator[str]:
        if mutant.key in self.reasons:
            yield self.reasons[mutant.key]
        yield from (family.reason for family in self.families if family.has(mutant))


def _everywhere(mutant: Mutant) -> Iterator[Mutant]:
    """The mutant where it is and where its file lay in earlier releases."""
    yield mutant
    for now, before in _MOVED.items():
        if mutant.file.startswith(now):
            yield replace(mutant, file=before + mutant.file.removeprefix(now))


def read(path: Path = FILE, families: Path = FAMILIES) -> Equivalents:
    """BadEquivalents if an entry lacks a part, gives no reason or stands there twice, or if a family asks for nothing
    that a mutant has."""
    return Equivalents(
        reasons=_reasons(tomllib.loads(path.read_text()).get("equivalent", ())),
        families=tuple(_family(entry) for entry in tomllib.loads(families.read_text()).get("family", ())),
    )


def _family(entry: Mapping[str, str]) -> Family:
    patterns = {name: text for name, text in entry.items() if name != "reason"}
    if not entry.get("reason") or not patterns or patterns.keys() - set(ASKED):
        raise BadEquivalents(f"{entry}: a family needs a reason, and asks for some of {', '.join(ASKED)}")
    try:
        return Family(patterns={n: re.compile(t, re.DOTALL) for n, t in patterns.items()}, reason=entry["reason"])
    except re.error as error:
        raise BadEquivalents(f"{entry}: {error}") from error


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
