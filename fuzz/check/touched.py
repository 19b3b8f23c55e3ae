"""The runners and backends that a change touches: those that run a file of sglang that it changes."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fuzz.check.plan import Item, Pair
from repro.cases.atomic_file import write_text
from repro.cases.case import Case
from repro.cases.codec import digest
from repro.commands.cli import BadInput
from repro.traces.trace import Trace
from repro.upstream.git import git
from repro.upstream.rig import Refused

# What a traced session has among its facts (runners/sessions/mutation.py): the files of which it ran a function.
FILES = "files"
PACKAGE = "sglang"
# Setups between two progress lines.
PROGRESS = 10

# The files that each pair runs, by their path below the import path (sglang/srt/...).
Ran = Mapping[Pair, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed file. name: as it was named. path: below the import path; empty if it is no part of the package.
    before, after: its text, None where there is no such file; after is None too where it is not known."""

    name: str
    path: str = ""
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The pairs that a change touches, and for each file why."""

    pairs: frozenset[Pair]
    reasons: tuple[str, ...]


def touched(changes: Sequence[Change], ran: Ran) -> Touched:
    """A pair is touched by a file of which it runs a function. What is changed outside of functions (a constant, a
    class, a signature) may reach everybody, and so may a file that is new or cannot be read."""
    pairs: set[Pair] = set()
    reasons = []
    for change in changes:
        mine = {pair for pair, files in ran.items() if change.path in files}
        if not change.path:
            mine, why = set(), f"no part of {PACKAGE}"
        elif change.before is None or change.after is None or not change.path.endswith(".py"):
            mine, why = set(ran), "every runner: a file that is new, gone or no Python"
        elif not only_functions(change.before, change.after):
            mine, why = set(ran), "every runner: it changes outside of functions"
        elif mine:
            why = ", ".join("/".join(pair) for pair in ran if pair in mine)
        else:
            why = "no runner runs it"
        if change.path:
            mine |= {pair for pair, files in ran.items() if not files}  # the files that those run are unknown
        pairs |= mine
        reasons.append(f"{change.name}: {why}")
    return Touched(pairs=frozenset(pairs), reasons=tuple(reasons))


def only_functions(before: str, after: str) -> bool:
    """True if two texts of a module differ in bodies of functions, imports and functions of new names alone: nothing
    outside of what changed can tell."""
    try:
        old, new = (ast.parse(text).body for text in (before, after))
    except SyntaxError:
        return False
    added = [node for node in new if isinstance(node, ast.FunctionDef) and not re.search(rf"\b{node.name}\b", before)]
    return list(map(_outline, _lasting(old))) == [_outline(node) for node in _lasting(new) if node not in added]


def _lasting(nodes: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Without imports, and texts that stand alone."""
    for node in nodes:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _outline(statement: ast.stmt) -> str:
    """All of it but the bodies of functions."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return ast.dump(statement)


class Sessions(Protocol):
    """Sessions that run cases. foresee: the cases of the sessions that come next. send: the cases that follow the next
    one."""

    def run(self, case: Case, /) -> Trace: ...

    def foresee(self, rounds: Sequence[Sequence[Case]], /) -> None: ...

    def send(self, upcoming: Sequence[Case], /) -> None: ...


def traces(
    items: Sequence[Item], sessions: Sessions, purpose: str, tell: Callable[[str], None]
) -> Iterator[tuple[Item, list[Trace]]]:
    """Each item with the traces of its cases, those behind it being opened ahead. purpose: the words of progress."""
    for number, item in enumerate(items):
        if number % PROGRESS == 0:
            tell(f"{purpose}: {number} of {len(items)} setups traced")
        sessions.foresee([later.cases for later in items[number + 1 :]])
        of_item = []
        for place, case in enumerate(item.cases, start=1):
            sessions.send(item.cases[place:])
            of_item.append(sessions.run(case))
        yield item, of_item


def ran(folder: Path, items: Sequence[Item], sessions: Sessions, tell: Callable[[str], None]) -> Ran:
    """The files that each pair runs for these items: as kept in this folder, else by running them in sessions that note
    it. No file of pairs that cannot be run. BadInput if none can."""
    cases = hashlib.sha256("".join(digest(case) for item in items for case in item.cases).encode())
    path = folder / f"files-{cases.hexdigest()[:16]}.json"
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        stored = _traced(items, sessions, tell)
        if not any(stored.values()):
            raise BadInput("--only-changed: no runner ran any file on the base") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1) + "\n")
    return {item.pair: frozenset(stored["/".join(item.pair)]) for item in items}


def _traced(items: Sequence[Item], sessions: Sessions, tell: Callable[[str], None]) -> dict[str, list[str]]:
    """The files of each pair."""
    files: dict[str, set[str]] = {}
    for item, of_item in traces(items, sessions, "files that runners run, looked at once", tell):
        names = files.setdefault("/".join(item.pair), set())
        for trace in of_item:
            names.update(json.loads(trace.facts.get(FILES, "[]")))
    return {pair: sorted(names) for pair, names in files.items()}


def changes(named: Sequence[str], tree: Path, base: Path) -> list[Change]:
    """The files that are named, or those that differ from where the tree left a revision. tree, base: import paths of
    the changed sglang and of its base. BadInput if a single name is neither a file nor a revision."""
    if len(named) == 1 and not _is_file(named[0], tree):
        return list(_since(named[0], tree))
    return [_named(text, tree, base) for text in named]


def _is_file(text: str, tree: Path) -> bool:
    return any((place / text).exists() for place in (Path(), tree, tree.parent)) or text.endswith(".py")


def _named(text: str, tree: Path, base: Path) -> Change:
    """Found from here, from the import path or from its repository; one that is nowhere may be anything."""
    places = (Path(text).absolute(), tree / text, tree.parent / text)
    place = next((place.resolve() for place in places if place.exists()), None)
    root = tree.resolve()
    path = str(place.relative_to(root)) if place and place.is_relative_to(root) else text.removeprefix("python/")
    if place and not path.startswith(f"{PACKAGE}/"):
        return Change(name=text)
    return Change(name=text, path=path, before=_text(base / path), after=_text(tree / path))


def _since(revision: str, tree: Path) -> Iterator[Change]:
    root = Path(_git(tree, "rev-parse", "--show-toplevel").strip())
    try:
        start = _git(tree, "merge-base", revision, "HEAD").strip()
    except BadInput:  # a shallow clone does not know where it left the revision
        start = _git(tree, "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    names = _git(root, "diff", "--name-only", "--no-renames", "-z", start)
    for name in filter(None, (names + _git(root, "ls-files", "--others", "--exclude-standard", "-z")).split("\0")):
        place = (root / name).absolute()
        if not place.is_relative_to(tree.resolve() / PACKAGE):
            yield Change(name=name)
            continue
        try:
            before: str | None = _git(root, "cat-file", "blob", f"{start}:{name}")
        except BadInput:  # it is new
            before = None
        yield Change(name=name, path=str(place.relative_to(tree.resolve())), before=before, after=_text(place))


def _git(folder: Path, *words: str) -> str:
    """The output of git. BadInput, with its last words, if it fails or is not there."""
    try:
        return git(folder, *words)
    except Refused as error:
        raise BadInput(str(error)) from error


def _text(path: Path) -> str | None:
    """None where it is no text, or not there."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
