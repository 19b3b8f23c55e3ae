"""One place of a release's source changed, as a worker is asked to change it."""

from __future__ import annotations

import ast

from repro.cases.case import Target
from runners.targets.environments import sglang_path


def planted(target: Target, file: str, function: str, old: str, new: str) -> dict[str, object]:
    """A change as Pool.change takes it: in this function the one place with the text `old` becomes `new`. function:
    qualified."""
    text = (sglang_path(target) / file).read_text()
    node = _function(ast.parse(text), function.split("."))
    lines = text.split("\n")
    begin = sum(len(line) + 1 for line in lines[: node.lineno - 1])
    end = sum(len(line) + 1 for line in lines[: node.end_lineno])
    assert text.count(old, begin, end) == 1, f"{function} of {file} has {old!r} {text.count(old, begin, end)} times"
    start = text.index(old, begin, end)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    places = (_place(text, start), _place(text, start + len(old)))
    edit = {"file": file, "function": function, "first_line": first, "text": new}
    return {"edit": {**edit, "start": places[0], "end": places[1]}}


def _function(tree: ast.AST, names: list[str]) -> ast.FunctionDef:
    for name in names:
        kinds = (ast.FunctionDef, ast.ClassDef)
        tree = next(n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == name)
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _place(text: str, at: int) -> list[int]:
    """Line, from 1 on, and column in UTF-8 bytes."""
    before = text[:at]
    return [before.count("\n") + 1, len(before.rpartition("\n")[2].encode())]
