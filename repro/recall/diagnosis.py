"""The functions of sglang that a failing run points at, best guess first: that which wrote the first wrong value, those
in which the run ended, those that wrote into the same buffer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.cases.case import Case
from repro.shrinking.origin import origin
from repro.traces.finding import Verdict
from repro.traces.trace import Trace

_PLACE = re.compile(r"(sglang/\S+\.py):(\d+) in ")
_FRAME = re.compile(r'/(sglang/\S+\.py)", line (\d+)')

# A file of sglang and a qualified name in it.
Function = tuple[str, str]


def guesses(case: Case, trace: Trace, verdicts: Sequence[Verdict], source: Path) -> tuple[Function, ...]:
    """source: the import path on which it ran."""
    names = (_function(source, file, int(line)) for file, line in _places(case, trace, verdicts))
    return tuple(dict.fromkeys(name for name in names if name))


def _places(case: Case, trace: Trace, verdicts: Sequence[Verdict]) -> Iterator[tuple[str, str]]:
    written = origin(case, trace, verdicts)
    if written:
        first = written.writer.place if written.writer else written.left_at
        yield from _PLACE.findall(first)
    yield from reversed(_FRAME.findall(trace.ended.detail))
    for write in reversed(written.writes if written else ()):
        yield from _PLACE.findall(write.place)


def _function(source: Path, file: str, line: int) -> Function | None:
    """The innermost function around this line; None if it is in none, or the file is not there."""
    try:
        tree = ast.parse((source / file).read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    scope: ast.AST = tree
    names: list[str] = []
    while inner := next(_around(scope, line), None):
        scope = inner
        names.append(inner.name)
    return (file, ".".join(names)) if names else None


def _around(scope: ast.AST, line: int) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The class or function directly in this scope that has the line."""
    for node in ast.iter_child_nodes(scope):
        if not (getattr(node, "lineno", line) <= line <= getattr(node, "end_lineno", line)):
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _around(node, line)
