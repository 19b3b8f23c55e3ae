"""The table of findings, repro/findings.toml: bugs of published sglang, and what its public threads have of each."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from repro.cases import json_parts
from repro.cases.codec import BadSeed
from repro.cases.release_list import ADAPTED, NEWEST
from repro.cases.releases import in_range

FINDINGS = Path(__file__).resolve().parents[1] / "findings.toml"
# Worst first: the order of the index.
SYMPTOMS = (
    "illegal memory access",
    "out-of-bounds write",
    "out-of-bounds read",
    "wrong tokens",
    "wrong hidden states",
    "wrong log-probabilities",
    "request fails",
    "server does not start",
    "reads another request's state",
    "wrong metadata",
    "fewer accepted drafts",
    "slower",
)
THREADS = "https://github.com/sgl-project/sglang/pull/"  # of issues, too: GitHub forwards them
SOURCES = "https://github.com/sgl-project/sglang/blob/"  # then a tag, and a path in the repository
_TEXT_MAX = 800
_REQUIRED = {"name", "symptom", "title", "impact", "releases", "cause", "seeds", "upstream"}
_OF_UPSTREAM = {"words", "introduced_by", "fixed_by", "fixed_in", "threads", "kin"}


class BadFindings(ValueError):
    """The table makes no sense. The text, one line, names the row and the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A bug in stored copies of sglang's public threads."""

    searched: date
    words: str = ""  # what was searched for, where nothing was found
    introduced_by: int = 0  # the merged pull request that brought it, as its history reads; 0 if that is not known
    fixed_by: int = 0  # the merged pull request
    fixed_in: str = ""  # the first release without the bug
    threads: tuple[str, ...] = ()  # "#NUMBER state"
    kin: str = ""  # threads about something near it

    def __str__(self) -> str:
        if self.fixed_by:
            return f"fixed by #{self.fixed_by} in {self.fixed_in}"
        begin = f"fixed in {self.fixed_in}; " if self.fixed_in else ""
        if self.threads:
            threads = ", ".join(f"{number} ({state})" for number, _, state in (t.partition(" ") for t in self.threads))
            return f"{begin}reported {threads}, seen {self.searched}"
        return f"{begin}none found ({self.searched})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBug:
    """A row of the table, whose head says what each field is."""

    name: str
    symptom: str
    title: str
    impact: str
    releases: str
    cause: str
    seeds: tuple[str, ...]
    upstream: Upstream
    notes: str = ""

    @property
    def affected(self) -> tuple[str, ...]:
        """The adapted releases with the bug, oldest first."""
        return tuple(release for release in ADAPTED if in_range(self.releases, release))

    @property
    def stands(self) -> bool:
        """True if the newest adapted release has the bug."""
        return in_range(self.releases, NEWEST)


def of_seed(findings: Sequence[PublishedBug], seed: str) -> PublishedBug | None:
    """The bug that this seed shows. seed: a file's name, with or without .json."""
    return next((finding for finding in findings if seed.removesuffix(".json") in finding.seeds), None)


def load(path: Path = FINDINGS) -> tuple[PublishedBug, ...]:
    """The rows of this file: the newest release's first, then by symptom. BadFindings."""
    try:
        with path.open("rb") as file:
            form = tomllib.load(file)
        items = json_parts.as_list("finding", form.get("finding", []))
        rows = [_row(f"finding {number}", item) for number, item in enumerate(items, start=1)]
    except OSError as error:
        raise BadFindings(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, json_parts.Refused, BadSeed) as error:
        raise BadFindings(f"{path}: {error}") from error
    return tuple(sorted(rows, key=lambda row: (not row.stands, SYMPTOMS.index(row.symptom))))


def _row(part: str, value: object) -> PublishedBug:
    fields = json_parts.as_fields(part, value, required=_REQUIRED, optional={"notes"})
    texts = {
        name: json_parts.as_text(f"{part}.{name}", fields[name], _TEXT_MAX)
        for name in fields.keys() - {"seeds", "upstream"}
    }
    if texts["symptom"] not in SYMPTOMS:
        raise json_parts.Refused(
            f"{part}.symptom: {json_parts.shown(texts['symptom'])} is not one of {', '.join(SYMPTOMS)}"
        )
    upstream = _upstream(f"{part}.upstream", fields["upstream"])
    row = PublishedBug(seeds=_texts(f"{part}.seeds", fields["seeds"]), upstream=upstream, **texts)
    if not row.affected or not row.seeds:
        raise json_parts.Refused(f"{part}: no adapted release is in {row.releases}, or no seed shows the bug")
    return row


def _upstream(part: str, value: object) -> Upstream:
    fields = json_parts.as_fields(part, value, required={"searched"}, optional=_OF_UPSTREAM)
    searched, number, brought = fields["searched"], fields.get("fixed_by", 0), fields.get("introduced_by", 0)
    # A datetime is a date as well, and cannot be compared with one.
    if type(searched) is not date:
        raise json_parts.Refused(f"{part}.searched: expected a day, such as 2026-11-26")
    if not isinstance(number, int) or (number and "fixed_in" not in fields):
        raise json_parts.Refused(f"{part}.fixed_by: expected a number, and fixed_in beside it")
    if not isinstance(brought, int):
        raise json_parts.Refused(f"{part}.introduced_by: expected a number")
    texts = {
        name: json_parts.as_text(f"{part}.{name}", fields[name], _TEXT_MAX)
        for name in fields.keys() & {"words", "fixed_in", "kin"}
    }
    threads = _texts(f"{part}.threads", fields.get("threads", []))
    upstream = Upstream(searched=searched, introduced_by=brought, fixed_by=number, threads=threads, **texts)
    for thread in upstream.threads:
        if not thread.startswith("#") or " " not in thread:
            raise json_parts.Refused(f"{part}.threads: expected #NUMBER and a state, not {json_parts.shown(thread)}")
    if not (number or upstream.threads or upstream.words):
        raise json_parts.Refused(f"{part}: neither a fix nor a thread; words are missing: what was searched for?")
    return upstream


def _texts(part: str, value: object) -> tuple[str, ...]:
    return tuple(json_parts.as_text(part, item, _TEXT_MAX) for item in json_parts.as_list(part, value))
