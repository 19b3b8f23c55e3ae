"""The known changes of sglang, read from repro/patches: a file each, whose name or `name` is that of the change.

why      what the edits do
oracle   the one that fails for the seed of this name
form     the same change in the spelling of some releases; the first whose places are all there is taken. Its edits are
         those of `Edit`.
  release   the last driven release with the bug, where the form is the patch proposed for it
  backport  false: the form is never applied to mend a release
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.upstream.edits import Edit

PATCHES = Path(__file__).resolve().parents[1] / "patches"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePatch:
    """The smallest change of a release under which a bug's seed passes: it shows that the stated cause is right, and is
    a patch to begin with."""

    seed: str  # a file in repro/seeds, without .json
    oracle: str
    release: str
    why: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backport:
    """The change of a buggy release under which the bug's own effects go away. What still fails then is another bug."""

    name: str  # as known_issues.toml has it under mended_by
    why: str
    forms: tuple[tuple[Edit, ...], ...]


def _rows() -> Iterator[dict[str, Any]]:
    for path in sorted(PATCHES.glob("*.toml")):
        yield {"name": path.stem} | tomllib.loads(path.read_text(encoding="utf-8"))


def _edits(form: dict[str, Any]) -> tuple[Edit, ...]:
    return tuple(Edit(**row) for row in form["edit"])


_ROWS = tuple(_rows())
CANDIDATE_PATCHES = tuple(
    CandidatePatch(seed=row["name"], oracle=row["oracle"], release=form["release"], why=row["why"], edits=_edits(form))
    for row in _ROWS
    for form in row["form"]
    if "release" in form
)
BACKPORTS = tuple(
    Backport(name=row["name"], why=row["why"], forms=forms)
    for row in _ROWS
    if (forms := tuple(_edits(form) for form in row["form"] if form.get("backport", True)))
)
BY_NAME = {backport.name: backport for backport in BACKPORTS}
