"""The report as a small static site: the report itself as its index, one page a finding under a name that stays, and
badges. For a host of static pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import html, wording
from reports.events import release_and_engine, target_order
from reports.frames import CaseTuple
from reports.issue import Material, issue
from reports.subjects import Subject, subjects
from repro.cases.atomic_file import write_text
from repro.cases.codec import BadSeed, loads
from repro.ledger.known import Issue
from repro.ledger.read import History

FOLDER = "findings"
_COLORS = {"failing": "#c0392b", "passing": "#2e7d32", "nothing measured": "#777777"}
_CHARACTER = 6.6  # pixels of one in a badge's font


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The page of one subject. name: its file's, without .html. state: the word of its badge. issue: its issue text, if
    there is a case to write one of."""

    subject: Subject
    name: str
    state: str
    issue: str


def write(history: History, out: Path, issues: Sequence[Issue] = (), cases: Iterable[CaseTuple] = ()) -> list[Path]:
    """Write all pages and badges; their paths, the index first. Files of an earlier site whose findings are gone stay,
    as somebody may have linked to them. OSError if the disk refuses."""
    every = leaves(history, issues)
    names = {leaf.subject.anchor: f"{FOLDER}/{leaf.name}.html" for leaf in every}
    texts = {leaf.subject.anchor: leaf.issue for leaf in every}
    files = {
        "index.html": html.render(history, cases, issues, names),
        "badge.svg": badge("eagleeye", _overall(every)),
    }
    pages = html.render_leaves(history, [leaf.subject for leaf in every], texts)
    files |= {names[anchor]: text for anchor, text in pages.items()}
    files |= {f"{FOLDER}/{leaf.name}.svg": badge(leaf.name, leaf.state) for leaf in every}
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(out / name, text)
    return [out / name for name in files]


def leaves(history: History, issues: Sequence[Issue] = ()) -> list[Leaf]:
    """A page for each subject, in the order of the report."""
    return [_leaf(subject) for subject in subjects(history, issues)]


def badge(label: str, state: str) -> str:
    """A small picture of two words."""
    color = next((color for word, color in _COLORS.items() if word in state), "#777777")
    widths = [round(len(text) * _CHARACTER) + 12 for text in (label, state)]
    return html.template("badge.svg").render(label=label, state=state, widths=widths, color=color)


def _leaf(subject: Subject) -> Leaf:
    return Leaf(subject=subject, name=stable_name(subject), state=_state(subject), issue=_issue(subject))


def stable_name(subject: Subject) -> str:
    """The same from report to report, whatever else the ledger holds."""
    return re.sub(r"[^a-z0-9]+", "-", subject.anchor.removesuffix(".json").lower()).strip("-") or subject.kind


def _state(subject: Subject) -> str:
    """On the newest release that it was measured on, of any engine."""
    measured = [t for t, square in subject.squares.items() if square.fails or square.state in ("passing", "fixed")]
    if not measured:
        return "nothing measured"
    newest = max(measured, key=target_order)
    word = "failing" if subject.squares[newest].fails else "passing"
    return f"{word} in {release_and_engine(newest)[0]}"


def _overall(leaves: Sequence[Leaf]) -> str:
    failing = sum(leaf.state.startswith("failing") for leaf in leaves)
    return f"{wording.counted(failing, 'finding')} failing" if failing else "passing" if leaves else "nothing measured"


def _issue(subject: Subject) -> str:
    minimal = subject.minimal
    if minimal.case is None:
        return ""
    try:
        about = loads(minimal.text).about
    except BadSeed:  # what a campaign wrote before it was stored as a seed file
        about = {}
    return issue(Material(case=minimal.case, about=about, subject=subject))
