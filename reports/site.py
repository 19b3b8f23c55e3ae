"""The report as a small static site: an index, one page a finding under a name that stays, and badges. For a host of
static pages; the single file (html.py) stays."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reports import changes, wording
from reports.events import Square, release_and_engine, target_order
from reports.issue import Material, issue
from reports.subjects import Subject, range_of, subjects
from repro.cases.atomic_file import write_text
from repro.cases.codec import BadSeed, loads
from repro.ledger.known import Issue
from repro.ledger.read import History

FOLDER = "findings"
_COLORS = {"failing": "#c0392b", "passing": "#2e7d32", "nothing measured": "#777777"}
_CHARACTER = 6.6  # pixels of one in a badge's font
_EVENTS_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The page of one subject. name: its file's, without .html. state: the word of its badge. ranges: where it fails,
    by engine, in words. issue: its issue text, if there is a case to write one of."""

    subject: Subject
    name: str
    state: str
    ranges: tuple[str, ...]
    squares: tuple[Square, ...]
    command: str
    issue: str


def write(history: History, out: Path, issues: Sequence[Issue] = ()) -> list[Path]:
    """Write all pages and badges; their paths, the index first. Files of an earlier site whose findings are gone stay,
    as somebody may have linked to them. OSError if the disk refuses."""
    pages = leaves(history, issues)
    template = _environment().get_template("site.html")
    style = Markup(_resource("site.css"))
    files = {
        "index.html": template.render(
            leaves=pages,
            leaf=None,
            style=style,
            headline=changes.headline(history, [page.subject for page in pages]),
            up="",
        ),
        "badge.svg": badge("eagleeye", _overall(pages)),
    }
    for leaf in pages:
        files[f"{FOLDER}/{leaf.name}.html"] = template.render(
            leaves=pages, leaf=leaf, style=style, headline=[], up="../"
        )
        files[f"{FOLDER}/{leaf.name}.svg"] = badge(leaf.name, leaf.state)
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
    return _environment().get_template("badge.svg").render(label=label, state=state, widths=widths, color=color)


def _leaf(subject: Subject) -> Leaf:
    targets = [target for target, square in subject.squares.items() if square.fails]
    command = wording.replay_command(subject.minimal.path or "SEED.json", (targets or ["RELEASE/ENGINE"])[-1])
    return Leaf(
        subject=subject,
        name=stable_name(subject),
        state=_state(subject),
        ranges=tuple(text for engine in ("emulated", "cuda", "toy") if (text := _range(subject, engine))),
        squares=tuple(subject.squares[target] for target in sorted(subject.squares, key=target_order)),
        command=command,
        issue=_issue(subject),
    )


def stable_name(subject: Subject) -> str:
    """The same from report to report, whatever else the ledger holds."""
    return re.sub(r"[^a-z0-9]+", "-", subject.anchor.removesuffix(".json").lower()).strip("-") or subject.kind


def _range(subject: Subject, engine: str) -> str:
    span = range_of(subject, engine)
    return f"{engine}: {span}" if span else ""


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


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_resource),
        finalize=lambda value: value if isinstance(value, Markup) else wording.printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(shortened=wording.shortened, folder=FOLDER, events_max=_EVENTS_MAX)
    return environment


def _resource(name: str) -> str:
    return importlib.resources.files("reports").joinpath(name).read_text(encoding="utf-8")
