"""The table of real bugs, repro/recall.toml: fixes that sglang merged, and how each bug is put before the harness."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases import json_parts
from repro.cases.case import BACKENDS, RUNNERS
from repro.cases.release_list import ADAPTED
from repro.upstream.edits import Edit
from repro.upstream.fixes import FIXES

RECALL = Path(__file__).resolve().parents[1] / "recall.toml"
FAMILIES = (
    "padding",
    "capacity",
    "stale plan",
    "lifetime",
    "order",
    "widths",
    "windows",
    "ranks",
    "model state",
    "kernels",
    "fall-back",
)
# fix: by the rule. release: by the rule, read in the difference of two releases; its pull request is not known.
# earlier: by the same rule, of releases before it. carried: another project's, by its pattern.
KINDS = ("fix", "release", "earlier", "carried")
_TEXT_MAX = 400
_REQUIRED = {"id", "mechanism", "fixed_in", "family"}
_OPTIONAL = {"kind", "runner", "backend", "aim", "base", "edit", "revert", "out", "blind", "built", "first", "ran"}
ENDS = ("found", "missed")


class BadRows(ValueError):
    """The table makes no sense. The text, one line, names the row and the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A bug. id: its pull request, or its release, with a word behind it where one mends several. mechanism: a
    sentence. fixed_in: the first release without it. runner, backend: those that its report names. aim: what its report
    says of the server besides, as options of `fuzz run`; empty: nothing. base: the release on which the edits put it
    back. out: why no runner reaches it; empty if one does. blind: true if it was not looked at before its first run.
    first: one of ENDS, how that run ended; ran: its day; both empty if that is not kept. built: what was built for it
    since."""

    id: str
    mechanism: str
    fixed_in: str
    family: str
    kind: str = "fix"
    runner: str = ""
    backend: str = ""
    aim: str = ""
    base: str = ""
    edits: tuple[Edit, ...] = ()
    out: str = ""
    blind: bool = False
    first: str = ""
    ran: str = ""
    built: str = ""

    @property
    def name(self) -> str:
        return self.id if self.kind == "release" else f"#{self.id}"

    @property
    def is_in_reach(self) -> bool:
        return not self.out

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """The functions that the fix changed: file and qualified name."""
        return frozenset((edit.file, edit.function) for edit in self.edits)


def load(path: Path = RECALL) -> tuple[Row, ...]:
    """The rows of this file, in its order. BadRows."""
    try:
        with path.open("rb") as file:
            form = tomllib.load(file)
        items = json_parts.as_list("row", form.get("row", []))
        rows = tuple(_row(f"row {number}", item) for number, item in enumerate(items, start=1))
    except OSError as error:
        raise BadRows(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, json_parts.Refused) as error:
        raise BadRows(f"{path}: {error}") from error
    ids = [row.id for row in rows]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise BadRows(f"{path}: row {twice[0]} is there twice")
    return rows


def chosen(rows: Sequence[Row], names: Collection[str]) -> tuple[Row, ...]:
    """The rows of these names, all without one. BadRows if there is no such row."""
    known = {row.id for row in rows}
    if missing := [name for name in names if name not in known]:
        raise BadRows(f"{missing[0]}: no such row; there are {', '.join(sorted(known))}")
    return tuple(row for row in rows if not names or row.id in names)


def _row(part: str, value: object) -> Row:
    fields = json_parts.as_fields(part, value, required=_REQUIRED, optional=_OPTIONAL)
    texts = {
        name: json_parts.as_text(f"{part}.{name}", fields[name], _TEXT_MAX)
        for name in fields.keys() - {"edit", "revert", "blind"}
    }
    for name, known in (("family", FAMILIES), ("kind", KINDS), ("first", ENDS)):
        if texts.get(name, known[0]) not in known:
            raise json_parts.Refused(f"{part}.{name}: {texts[name]} is not one of {', '.join(known)}")
    if bool(texts.get("first")) != bool(texts.get("ran")) or ("first" in texts and "out" in texts):
        raise json_parts.Refused(f"{part}.first: a row in reach that was run has first and ran, another has neither")
    blind = json_parts.as_truth(f"{part}.blind", fields.get("blind", False))
    row = Row(**texts, edits=_edits(part, fields, texts.get("base", "")), blind=blind)
    if row.is_in_reach and (row.runner not in RUNNERS or row.backend not in BACKENDS or row.base not in ADAPTED):
        raise json_parts.Refused(f"{part}: a row in reach needs a runner, a backend and an adapted release as base")
    if row.is_in_reach != bool(row.edits):
        raise json_parts.Refused(f"{part}: a row in reach has edits, another one has none and says why: out")
    return row


def _edits(part: str, fields: dict[str, object], base: str) -> tuple[Edit, ...]:
    """The edits of a row, or those that take the fix of this number out of its base."""
    if "revert" in fields:
        number = json_parts.as_integer(f"{part}.revert", fields["revert"])
        fixes = [fix for fix in FIXES if fix.number == number]
        if not fixes:
            raise json_parts.Refused(f"{part}.revert: no known fix has the number {number}")
        return fixes[0].edits(base)
    items = json_parts.as_list(f"{part}.edit", fields.get("edit", []))
    return tuple(_edit(f"{part}.edit {number}", item) for number, item in enumerate(items, start=1))


def _edit(part: str, value: object) -> Edit:
    fields = json_parts.as_fields(part, value, required={"file", "function", "old"}, optional={"new", "times"})
    times = json_parts.as_integer(f"{part}.times", fields.get("times", 1))
    # Code has lines: as_text takes one.
    texts = {name: "\n".join(_lines(f"{part}.{name}", fields[name])) for name in fields.keys() - {"times"}}
    return Edit(times=times, **(texts | {"file": f"sglang/{texts['file']}"}))


def _lines(part: str, value: object) -> list[str]:
    if not isinstance(value, str):
        raise json_parts.Refused(f"{part}: expected text, not {json_parts.shown(value)}")
    return [json_parts.as_text(part, line, _TEXT_MAX) for line in value.strip("\n").splitlines()]
