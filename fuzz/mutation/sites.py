"""All mutants of a source text: every operator at every place of every function that it fits."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from fuzz.mutation import features
from fuzz.mutation.expressions import OPERATORS, Slip, renamed
from fuzz.mutation.mutant import Mutant

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What does not change what a runner gives: messages, checks that only ever raise, and sglang's own canaries.
_TALK = ("log", "logger", "warnings", "print", "rank0_log", "log_info_on_rank0", "maybe_detect", "async_assert")
# What tells Triton's compiler what it may rely on.
_HINTS = ("tl.multiple_of", "tl.max_contiguous", "tl.max_constancy", "tl.assume")
_SILENT = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass)


def mutants(file: str, source: str) -> list[Mutant]:
    """The mutants of a module's text. file: its name in them."""
    return list(_Module(file, source).mutants())


class _Module:
    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.tree = ast.parse(source)

    def mutants(self) -> Iterator[Mutant]:
        seen: set[str] = set()
        for name, function in _functions(self.tree.body, ""):
            for mutant in self._of_function(name, function):
                # The same change may be reached in two ways.
                if mutant.old != mutant.new and mutant.id + mutant.new not in seen:
                    seen.add(mutant.id + mutant.new)
                    yield mutant

    def _of_function(self, name: str, function: Function) -> Iterator[Mutant]:
        names = frozenset(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(function)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        siblings = _siblings(function)
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        within = (first, function.end_lineno or function.lineno)
        for statement in _statements(function.body):
            if isinstance(statement, _SILENT) or _talks(statement) or "canary" in _header(statement).lower():
                continue
            for operator, node, new in _slips(statement, names, siblings):
                if not features.alone(node, new):
                    yield self._mutant(name, within, statement, operator, node, new)

    def _mutant(
        self,
        function: str,
        within: tuple[int, int],
        statement: ast.stmt,
        operator: str,
        node: ast.expr | ast.stmt,
        new: ast.AST,
    ) -> Mutant:
        """within: the first and the last line of the function."""
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        text = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(node, ast.expr):
            # What follows keeps its line numbers, by which functions and kernels are found again.
            text = f"({text}{chr(10) * (end[0] - start[0])})"
        else:
            text += "\n" * (end[0] - start[0])
        return Mutant(
            file=self.file,
            function=function,
            first_line=within[0],
            last_line=within[1],
            line=start[0],
            lines=(statement.lineno, _header_end(statement)),
            operator=operator,
            start=start,
            end=end,
            text=text,
            part=_header(node) if isinstance(node, ast.stmt) else ast.unparse(node),
            old=_header(statement),
            new=_header(_replaced(statement, node, new)),
        )


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    """The outermost functions, and the methods of classes, of a module."""
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            for part in (node.body, node.orelse):
                yield from _functions(part, prefix)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements below, each before those nested in it; not those that only lead to an error or a message."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.If) and not node.orelse and all(_only_speaks(inner) for inner in node.body):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, []))


def _only_speaks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise | ast.Assert | ast.Pass) or _talks(node)


def _talks(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = ast.unparse(node.value.func)
    return called in _HINTS or called.split(".")[0].startswith(_TALK)


def _slips(
    statement: ast.stmt, names: frozenset[str], siblings: dict[str, list[str]]
) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.AST]]:
    """Operator, what is replaced and what stands in its place."""
    for operator, new in _of_statement(statement):
        yield operator, statement, new
    if isinstance(statement, ast.If):
        for operator, test in _of_test(statement):
            yield operator, statement.test, test
    for node in _expressions(statement):
        slips: Iterator[Slip] = (slip for operator in OPERATORS for slip in operator(node, names))
        for operator, slip in slips:
            yield operator, node, slip
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            for other in _swapped(node, siblings):
                yield "swapped", node, other


def _of_statement(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """Statements that are left out."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield "dropped write", ast.Pass()
    if isinstance(statement, ast.AugAssign):
        yield "dropped write", ast.Pass()
    if isinstance(statement, ast.Assign):
        kinds = {type(target) for target in statement.targets}
        if kinds == {ast.Subscript}:
            yield "dropped write", ast.Pass()
        if kinds == {ast.Attribute}:
            yield "skipped restore", ast.Pass()


def _of_test(statement: ast.If) -> Iterator[Slip]:
    yield "guard", ast.Constant(True)
    yield "guard", ast.Constant(False)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of the statement itself, not of those nested in it; no annotations, no texts."""
    texts = _texts(statement)
    for field, value in ast.iter_fields(statement):
        if field in ("body", "orelse", "finalbody", "handlers", "annotation", "decorator_list", "args", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            for inner in ast.walk(node) if isinstance(node, ast.AST) else ():
                if isinstance(inner, ast.expr) and id(inner) not in texts:
                    yield inner


def _texts(statement: ast.stmt) -> set[int]:
    """The nodes within an f-string, whose positions are not those in the file."""
    texts = (node for node in ast.walk(statement) if isinstance(node, ast.JoinedStr))
    return {id(inner) for text in texts for inner in ast.walk(text)}


def _siblings(function: Function) -> dict[str, list[str]]:
    """The attributes that are read as values, by their object, in their order."""
    siblings: dict[str, list[str]] = {}
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in called:
            owner = ast.unparse(node.value)
            if owner not in ("torch", "tl", "np") and node.attr not in siblings.setdefault(owner, []):
                siblings[owner].append(node.attr)
    return siblings


def _swapped(node: ast.Attribute, siblings: dict[str, list[str]]) -> Iterator[ast.expr]:
    """The next of its kind: a buffer for another one of the same runner or batch."""
    owner = ast.unparse(node.value)
    others = siblings.get(owner, [])
    if owner.rpartition(".")[2] in ("buffers", "forward_batch", "spec_info", "self") and node.attr in others:
        following = others[(others.index(node.attr) + 1) % len(others)]
        if following != node.attr and (owner != "self" or _kind(following) == _kind(node.attr)):
            yield renamed(node, following)


def _kind(name: str) -> str:
    """Attributes of self that one may take for each other have a word in common."""
    return name.rpartition("_")[2]


def _replaced(statement: ast.stmt, node: ast.AST, new: ast.AST) -> ast.stmt:
    if node is statement:
        assert isinstance(new, ast.stmt)
        return new
    memo: dict[int, object] = {id(node): new}
    return copy.deepcopy(statement, memo)


def _header(statement: ast.stmt) -> str:
    """The statement on one line, without those nested in it."""
    bare = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers"):
        if isinstance(getattr(bare, field, None), list):
            setattr(bare, field, [ast.Pass()] if field == "body" else [])
    text = ast.unparse(ast.fix_missing_locations(bare))
    return " ".join(text.removesuffix("pass").split()) if hasattr(bare, "body") else " ".join(text.split())


def _header_end(statement: ast.stmt) -> int:
    body: list[ast.stmt] = getattr(statement, "body", [])
    return max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno
