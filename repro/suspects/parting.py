"""A graph that went another way through the model than eager did: who made what it went by."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from repro.suspects.clues import BACKENDS, WORKERS, Clues, Suspect
from repro.suspects.statements import Does, plain, tree
from repro.suspects.way import CAPTURE, Function

_MODEL = ("sglang/srt/layers/", "sglang/srt/models/")
_EXECUTOR = "sglang/srt/model_executor/"


def parted(clues: Clues, step: int) -> Iterator[Suspect]:
    """Functions of runners that make or hand on what a condition of the model asks for, behind which lines ran while
    the graph was captured and did not when eager ran the step."""
    captured, eager = (_lines(clues, phases) for phases in ((CAPTURE,), clues.way.of_step(step, "eager")))
    names: set[str] = set()
    for function in captured.keys() & eager.keys():
        if only := captured[function] - eager[function]:
            names |= _asked(clues, function, min(only), eager[function])
    phases = (CAPTURE,)
    for does in (Does.MAKES, Does.ASSIGNS) if names else ():
        for suspect in clues.by_name(phases, names, (does,), "the graph has this, by which eager goes another way"):
            if suspect.file.startswith((_EXECUTOR, WORKERS)):
                yield suspect


def _lines(clues: Clues, phases: tuple[str, ...] | list[str]) -> dict[Function, set[int]]:
    lines: defaultdict[Function, set[int]] = defaultdict(set)
    for ran in clues.way.during(*phases):
        if ran.file.startswith(_MODEL) and not ran.file.startswith(BACKENDS):
            lines[ran.function] |= ran.lines
    return dict(lines)


def _asked(clues: Clues, function: Function, line: int, common: set[int]) -> set[str]:
    """The names in the last condition ahead of a line that both ways came to."""
    tests = [
        node.test
        for node in ast.walk(tree(clues.text(function[0])))
        if isinstance(node, ast.If | ast.IfExp) and node.test.lineno in common and node.test.lineno <= line
    ]
    last = max(tests, key=lambda test: test.lineno, default=None)
    nodes = list(ast.walk(last)) if last is not None and clues.at(function[0], last.lineno) == function else []
    names = (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes)
    return {plain(name) for name in names if name} - {"self", ""}
