"""A conformance run in words: lines as they come, a table in Markdown, a record as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from repro.cases.families import FAMILIES_NOT_DRIVEN, FAMILY_FACTS
from repro.cases.places import markdown as in_markdown
from runners.conformance.rows import Row, State

FORMAT = 1
_MARKS = {State.GREEN: "yes", State.UNSUPPORTED: "no", State.RED: "**RED**"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The result of one release. name: as it was asked for. adapted: True if an adapter was made for it. moved: pins
    that are others than the last adapted release's. unnamed: what no adapter names, by kind."""

    name: str
    sglang: str
    adapted: bool
    rows: tuple[Row, ...]
    moved: tuple[str, ...] = ()
    unnamed: Mapping[str, tuple[str, ...]]
    seconds: float = 0.0

    @property
    def red(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.state is State.RED)


def line(row: Row) -> str:
    """One row for a terminal."""
    what = f"{' '.join(row.key):<36} {row.state.value:<11}"
    if row.state is State.GREEN:
        fails = f"; fails {', '.join(row.fails)}" if row.fails else ""
        return f"{what} {len(row.passes)} oracles passed, adapter {row.adapter}, {row.seconds:.1f} s{fails}"
    return f"{what} {row.words}"


def summary(release: Release) -> list[str]:
    """The lines behind the rows of a release."""
    counts = ", ".join(f"{sum(row.state is state for row in release.rows)} {state.value}" for state in State)
    lines = [f"{release.name}: {counts}; {release.seconds:.0f} s"]
    if not release.adapted:
        lines.append(f"{release.name} is newer than every adapter: the newest adapter of each runner was tried")
    lines += [f"pinned otherwise: {text}" for text in release.moved]
    lines += [f"no adapter names these {kind}: {', '.join(names)}" for kind, names in release.unnamed.items() if names]
    return lines


def to_json(releases: Sequence[Release]) -> str:
    def form(release: Release) -> dict[str, Any]:
        return asdict(release) | {"rows": [asdict(row) for row in release.rows]}

    return json.dumps({"format": FORMAT, "releases": [form(release) for release in releases]}, indent=1) + "\n"


def from_json(form: Mapping[str, Any]) -> Release:
    """One of the `releases` of to_json()."""
    rows = tuple(
        Row(**(row | {"state": State(row["state"]), "fails": tuple(row["fails"]), "passes": tuple(row["passes"])}))
        for row in form["rows"]
    )
    unnamed = {kind: tuple(names) for kind, names in form["unnamed"].items()}
    return Release(**(dict(form) | {"rows": rows, "moved": tuple(form["moved"]), "unnamed": unnamed}))


def to_markdown(releases: Sequence[Release], command: str) -> str:
    """A table, runner by release, with notes below. command: the one that makes it."""
    notes: dict[str, int] = {}
    keys = tuple(dict.fromkeys(row.key for release in releases for row in release.rows))
    of_families = any(key[2] in FAMILY_FACTS for key in keys)
    head = ["runner", "backend", "algorithm or family", *(release.name for release in releases)]
    lines = [
        f"# {'Model families' if of_families else 'Runners'} that are driven, by release",
        "",
        f"Made by `{command}`,",
        "on the emulated engine: one small case for each runner, backend and algorithm (or family of models), by graph",
        "and by eager, judged. `yes`: it ran and was judged. `no`: it does not exist there, for the reason in the",
        "note. `fails`: it was judged, and an oracle fails there: a finding of that release.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for key in keys:
        cells = [_cell(release, key, notes) for release in releases]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    lines += ["", *(f"{number}. {in_markdown(text)}" for text, number in notes.items())]
    if of_families:
        lines += ["", "## Not driven", "", *(f"- {what}: {why}" for what, why in FAMILIES_NOT_DRIVEN.items())]
    return "\n".join([*lines, *_unnamed(releases)]) + "\n"


def _cell(release: Release, key: tuple[str, str, str], notes: dict[str, int]) -> str:
    row = next((row for row in release.rows if row.key == key), None)
    if row is None:
        return ""
    # One note for all releases that differ in nothing but their name.
    words = (
        "fails " + ", ".join(row.fails) if row.fails else row.words.replace(f"sglang {release.sglang}", "the release")
    )
    if not words:
        return _MARKS[row.state]
    number = notes.setdefault(words, len(notes) + 1)
    return f"{'fails' if row.fails else _MARKS[row.state]} ({number})"


def _unnamed(releases: Sequence[Release]) -> list[str]:
    """A list for each kind of names that no adapter has, with their releases, then pins that have moved."""
    kinds = dict.fromkeys(kind for release in releases for kind in release.unnamed)
    lines = []
    for kind in kinds:
        names = sorted({name for release in releases for name in release.unnamed.get(kind, ())})
        if names:
            lines += ["", f"## {kind[0].upper()}{kind[1:]} that no adapter names", ""]
            lines += [
                f"- `{name}`: {_spans([name in r.unnamed.get(kind, ()) for r in releases], releases)}" for name in names
            ]
    moved = [f"- {release.name}: {text}" for release in releases for text in release.moved]
    return [*lines, *(["", "## Pinned otherwise than in the last adapted release", "", *moved] if moved else [])]


def _spans(present: Sequence[bool], releases: Sequence[Release]) -> str:
    """The releases that are present, neighbours as a span: 0.5.11 to 0.5.13, 0.5.16."""
    spans: list[list[str]] = []
    for number, release in enumerate(releases):
        if present[number] and number and present[number - 1]:
            spans[-1][1:] = [release.name]
        elif present[number]:
            spans.append([release.name])
    return ", ".join(" to ".join(span) for span in spans)
