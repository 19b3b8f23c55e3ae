"""sglang with caches in it (tests/builders/caches.py): as sessions have it, and as targets of campaigns.

python -m tests.builders.cached /tmp/caches [NAME ...]
python -m fuzz run --target /tmp/caches/0.5.23-cache-draft-plan-right@emulated --runner draft --backend flashinfer
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro.cases.case import Target
from repro.upstream.edits import Edit, edited
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.caches import CACHES, RELEASE, Cache


def targets(folder: Path, names: frozenset[str] = frozenset()) -> Iterator[tuple[Cache, str, Path]]:
    """Each cache of these names, or all, with the variant's name and its import path under this folder."""
    published = sglang_path(Target(RELEASE, "emulated"))
    for cache in CACHES:
        if names and cache.name not in names:
            continue
        for variant, edits in cache.variants():
            what = Overlay(release=RELEASE, change=f"cache {cache.name} {variant}")
            yield cache, variant, make_overlay(published, what, edits, folder)


def change(edits: Iterable[Edit]) -> dict[str, object]:
    """The change that gives a pool of tests.builders.cached_session all of these edits."""
    release = sglang_path(Target(RELEASE, "emulated"))
    by_function: defaultdict[tuple[str, str], list[Edit]] = defaultdict(list)
    for edit in edits:
        by_function[edit.file, edit.function].append(edit)
    return {"edits": [_swap(release, *place, group) for place, group in by_function.items()]}


def _swap(release: Path, file: str, function: str, edits: list[Edit]) -> dict[str, object]:
    text = (release / file).read_text()
    scopes: list[ast.AST] = [ast.parse(text)]
    for name in function.split("."):
        scopes = [node for scope in scopes for node in ast.iter_child_nodes(scope) if getattr(node, "name", "") == name]
    [node] = scopes
    end = [text.count("\n") + 1, 0]
    where = {"file": file, "function": function, "first_line": node.lineno}  # type: ignore[attr-defined]  # a definition has a line
    return {**where, "start": [1, 0], "end": end, "text": edited(text, edits)}


if __name__ == "__main__":
    for made, by, path in targets(Path(sys.argv[1]), frozenset(sys.argv[2:])):
        print(f"{path}@emulated --runner {made.runner} --backend {made.backend}  # {made.name}: {by}")
