"""Small edits of Python source: a statement or an expression is named by its function and by its own text.

Only the named places change, every other character stays; a place that is not there as often as expected is an error.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro.cases.json_parts import plain

_SHOWN = 80  # characters of an edit's text that a message repeats
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NotThere(Exception):
    """The source has no such place, or has it a different number of times. The text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change of one file.

    file: relative to the import path, sglang/srt/... . function: its qualified name, as Class.method. old: the
    statement or expression, however it is laid out in the file. new: what takes its place; without it, the
    statement is dropped. times: how often `old` stands in the function; all of them are changed.
    """

    file: str
    function: str
    old: str
    new: str = ""
    times: int = 1


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The source with these edits made, all of which are of this one file. NotThere if one of them cannot be made."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotThere(f"{edits[0].file}: not Python, line {error.lineno}: {error.msg}") from error
    spans = sorted((span for edit in edits for span in _spans(text, tree, edit)), reverse=True)
    content = text.encode()
    starts = [0]
    for row in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    begun = len(content)
    for (line, column), (last_line, last_column), new in spans:
        start, end = starts[line - 1] + column, starts[last_line - 1] + last_column
        if end > begun:
            raise NotThere(f"{edits[0].file}: two edits of line {line} overlap")
        content, begun = content[:start] + new.encode() + content[end:], start
    result = content.decode()
    try:
        ast.parse(result)
    except SyntaxError as error:
        raise NotThere(f"{edits[0].file}: edited, it is no Python, line {error.lineno}: {error.msg}") from error
    return result


Span = tuple[tuple[int, int], tuple[int, int], str]


def _spans(text: str, tree: ast.Module, edit: Edit) -> Iterator[Span]:
    """Where the old text begins and ends (line, byte column), and what goes there."""
    function = _function(tree, edit)
    wanted = _wanted(edit)
    form = ast.dump(wanted)
    found = [node for node in ast.walk(function) if type(node) is type(wanted) and ast.dump(node) == form]
    if len(found) != edit.times:
        what = plain(" ".join(edit.old.split()), _SHOWN)
        raise NotThere(f"{edit.file}: {what!r} is {len(found)} times in {edit.function}, expected {edit.times}")
    for node in found:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None and node.end_col_offset is not None
        # The first line stands where the old one stood; those behind it need its indentation.
        new = textwrap.indent(textwrap.dedent(edit.new).strip(), " " * node.col_offset).lstrip() or "pass"
        yield (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), new


def _wanted(edit: Edit) -> ast.AST:
    """What to look for: an expression if both texts are expressions, else a statement."""
    if edit.new:
        old, new = _expression(edit.old), _expression(edit.new)
        if old is not None and new is not None:
            return old
    statements = ast.parse(textwrap.dedent(edit.old)).body
    if len(statements) != 1:
        raise ValueError(f"an edit is of one statement, not of {len(statements)}: {edit.old!r}")
    return statements[0]


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:  # a statement
        return None


def _function(tree: ast.Module, edit: Edit) -> ast.AST:
    found: list[ast.AST] = [tree]
    for name in edit.function.split("."):
        found = [inner for outer in found for inner in _defined(outer) if inner.name == name]
    if len(found) != 1:
        raise NotThere(f"{edit.file}: {edit.function} is defined {len(found)} times, expected 1")
    return found[0]


def _defined(outer: ast.AST) -> Iterator[_Def]:
    """The functions and classes defined in this one itself, under conditions too, but not in one another."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, _Def):
            yield node
        else:
            yield from _defined(node)
