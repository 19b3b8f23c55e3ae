"""The uses that statements make of a name: the sources of sglang, read along the lines that ran."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

# Words that sglang puts around the name of a buffer that is the same.
_BEFORE = ("cuda_graph_", "new_", "padded_", "raw_", "_")
_BEHIND = ("_ptr", "_buffers", "_buffer", "_buf", "_tensor", "_int32", "_list")
_MAKERS = frozenset(
    f"{before}{name}{behind}"
    for name in ("empty", "zeros", "ones", "full", "tensor", "arange")
    for before, behind in (("", ""), ("new_", ""), ("", "_like"))
)
_LONGEST = 60  # letters of a text that may be a name


class Does(IntEnum):
    """The ways in which a statement uses a name, the strongest first. MAKES: allocates it. WRITES: changes it in place.
    STORES: so does a kernel's statement. ASSIGNS: sets it. HANDS: gives it to a kernel."""

    MAKES = 0
    WRITES = 1
    STORES = 2
    ASSIGNS = 3
    HANDS = 4
    NAMES = 5
    READS = 6


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a name in this line."""

    does: Does
    line: int


def plain(name: str) -> str:
    """The name without what is put around it."""
    name = name.lower()
    for _ in range(2):
        for text in _BEFORE:
            name = name.removeprefix(text)
        for text in _BEHIND:
            name = name.removesuffix(text)
    return name


@lru_cache(maxsize=512)
def statements(text: str) -> Mapping[int, tuple[ast.stmt, ...]]:
    """The statements of a file by each line that they stand on, of a compound one by its head; empty if the text is not
    Python."""
    by_line: dict[int, list[ast.stmt]] = {}
    for node in ast.walk(tree(text)):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            for line in range(node.lineno, max(last, node.lineno) + 1):
                by_line.setdefault(line, []).append(node)
    return {line: tuple(nodes) for line, nodes in by_line.items()}


@lru_cache(maxsize=512)
def tree(text: str) -> ast.Module:
    """Empty if the text is not Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def uses(text: str, lines: Collection[int], names: Collection[str]) -> Iterator[Use]:
    """The uses of these plain names by the statements of these lines."""
    by_line = statements(text)
    for statement in dict.fromkeys(node for line in sorted(lines) for node in by_line.get(line, ())):
        if not words(statement).isdisjoint(names):
            yield from (Use(does, statement.lineno) for does in _uses(statement, names))


@lru_cache(maxsize=1 << 16)
def words(statement: ast.stmt) -> frozenset[str]:
    """All plain names that a statement has."""
    return frozenset(filter(None, (plain(_word(node)) for node in _parts(statement))))


@lru_cache(maxsize=1 << 16)
def _parts(statement: ast.stmt) -> tuple[ast.AST, ...]:
    """The parts of a statement without the statements inside it."""
    parts: list[ast.AST] = [statement]
    for node in parts:
        parts += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return tuple(parts)


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and len(node.value) <= _LONGEST else ""
    if isinstance(node, ast.keyword):
        return node.arg or ""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _uses(statement: ast.stmt, names: Collection[str]) -> Iterator[Does]:
    targets = _targets(statement)
    if any(_is_about(target, names) for target in targets):
        if any(isinstance(target, ast.Subscript) for target in targets):
            yield Does.WRITES
        else:
            yield Does.MAKES if _makes(getattr(statement, "value", None)) else Does.ASSIGNS
    for node in _parts(statement):
        if isinstance(node, ast.Call):
            yield from _of_call(node, names)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and plain(_word(key)) in names and _makes(value):
                    yield Does.MAKES
        elif plain(_word(node)) in names:
            yield Does.NAMES if isinstance(node, ast.Constant) else Does.READS


def _of_call(call: ast.Call, names: Collection[str]) -> Iterator[Does]:
    function = call.func
    if isinstance(function, ast.Attribute):
        # torch's methods that write in place end so.
        if function.attr.endswith("_") and not function.attr.startswith("_") and _is_about(function.value, names):
            yield Does.WRITES
        if function.attr == "store" and call.args and any(plain(_word(n)) in names for n in ast.walk(call.args[0])):
            yield Does.STORES
    if isinstance(function, ast.Subscript) and any(_is_about(argument, names) for argument in call.args):
        yield Does.HANDS
    for keyword in call.keywords:
        if keyword.arg == "out" and _is_about(keyword.value, names):
            yield Does.WRITES
        elif keyword.arg and plain(keyword.arg) in names:
            yield Does.MAKES if _makes(keyword.value) else Does.ASSIGNS


def hands_on(statements: Collection[ast.stmt], names: Collection[str]) -> bool:
    """True if these only give calls what has such a name under the same name, as in f(x=batch.x)."""
    if any(_is_about(target, names) for statement in statements for target in _targets(statement)):
        return False
    calls = (node for statement in statements for node in _parts(statement) if isinstance(node, ast.Call))
    named = [keyword for call in calls for keyword in call.keywords if plain(keyword.arg or "") in names]
    return bool(named) and all(_is_about(keyword.value, {plain(keyword.arg or "")}) for keyword in named)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.AugAssign | ast.AnnAssign):
        return [statement.target]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _is_about(node: ast.expr, names: Collection[str]) -> bool:
    """True if an expression is one of the names, a part of it or a view."""
    while isinstance(node, ast.Subscript | ast.Call):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return False
    return isinstance(node, ast.Name | ast.Attribute) and plain(_word(node)) in names


def _makes(value: ast.AST | None) -> bool:
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)] if value else []
    return any(_word(function) in _MAKERS for function in calls)
