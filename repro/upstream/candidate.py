"""One candidate patch, as data."""

from __future__ import annotations

from dataclasses import dataclass

from repro.upstream.edits import Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePatch:
    """seed: a file in repro/seeds, without .json. oracle: the one that fails for it. release: the last one that has
    the bug, of those that are driven. why: what the edits do."""

    seed: str
    oracle: str
    release: str
    why: str
    edits: tuple[Edit, ...]
