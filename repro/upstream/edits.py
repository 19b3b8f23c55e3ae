"""Small edits of Python source: a statement or an expression is named by its function and by its own text.

Only the named places change, every other character stays; a place that is not there as often as expected is an error.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro.cases.json_parts import plain

_SHOWN = 80  # characters of an edit's text that a message repeats
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class EditNotFound(Exception):
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
    """The source of one file with these edits made. EditNotFound if one of them cannot be made."""
    try:
        tree = _parsed(text)
    except SyntaxError as error:
        raise EditNotFound(f"{edits[0].file}: not Python, line {error.lineno}: {error.msg}") from error
    spans = sorted((span for edit in edits for span in _spans(text, tree, edit)), reverse=True)
    content = text.encode()
    starts = [0]
    for row in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    begun = len(content)
    for (line, column), (last_line, last_column), new in spans:
        start, end = starts[line - 1] + column, starts[last_line - 1] + last_column
        if end > begun:
            raise EditNotFound(f"{edits[0].file}: two edits of line {line} overlap")
        content, begun = content[:start] + new.encode() + content[end:], start
    result = content.decode()
    try:
        ast.parse(result)
    except SyntaxError as error:
        raise EditNotFound(
            f"{edits[0].file}: not valid Python after the edit, line {error.lineno}: {error.msg}"
        ) from error
    return result


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    """Read only: several edits look at the same large files one after the other."""
    return ast.parse(text)


Span = tuple[tuple[int, int], tuple[int, int], str]


def _spans(text: str, tree: ast.Module, edit: Edit) -> Iterator[Span]:
    """The span of the old text (line, byte column), and the text that goes there."""
    function = _function(tree, edit)
    target = _wanted(edit)
    form = ast.dump(target)
    nodes = [node for node in ast.walk(function) if type(node) is type(target) and ast.dump(node) == form]
    if len(nodes) != edit.times:
        what = plain(" ".join(edit.old.split()), _SHOWN)
        raise EditNotFound(f"{edit.file}: {what!r} is {len(nodes)} times in {edit.function}, expected {edit.times}")
    for node in nodes:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None and node.end_col_offset is not None
        # The first line stands where the old one stood; those behind it need its indentation.
        new = textwrap.indent(textwrap.dedent(edit.new).strip(), " " * node.col_offset).lstrip() or "pass"
        yield (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), new


def _wanted(edit: Edit) -> ast.AST:
    """The node to look for: an expression if both texts are expressions, else a statement."""
    if edit.new:
        old, new = _expression(edit.old), _expression(edit.new)
        if old is not None and new is not None:
            return old
    statements = ast.parse(textwrap.dedent(edit.old)).body
    if len(statements) != 1:
        raise ValueError(f"an edit replaces one statement, not {len(statements)}: {edit.old!r}")
    return statements[0]


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:  # a statement
        return None


def _function(tree: ast.Module, edit: Edit) -> ast.AST:
    scopes: list[ast.AST] = [tree]
    for name in edit.function.split("."):
        scopes = [inner for outer in scopes for inner in _defined(outer) if inner.name == name]
    if len(scopes) != 1:
        raise EditNotFound(f"{edit.file}: {edit.function} is defined {len(scopes)} times, expected 1")
    return scopes[0]


def _defined(outer: ast.AST) -> Iterator[_Def]:
    """The functions and classes defined in this one itself, under conditions too, but not in one another."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, _Def):
            yield node
        else:
            yield from _defined(node)
