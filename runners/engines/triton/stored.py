"""The arguments of a Triton kernel over which it may store, from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_LOADS = ("load",)
_STORES = ("store",)
_ATOMIC = "atomic_"


@functools.cache
def stored(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters from which a store's address is made, also by a function that is called. An address is followed
    through names, and not through values that were loaded."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):  # a function of the language, under a name of its own (interpreter.py)
        return frozenset()
    parameters = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    sources = {name: {name} for name in parameters}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)]
    for _ in range(2):  # a loop may carry an address from its end to its beginning
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made = {name for value in ([node.value] if node.value else []) for name in _made_of(value, sources)}
            for target in (name for each in targets for name in _names(each)):
                sources[target] = sources.get(target, set()) | made
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return frozenset(name for call in calls for name in _stored_by(call, function, sources))


def _stored_by(call: ast.Call, function: Callable[..., Any], sources: dict[str, set[str]]) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _STORES or name.startswith(_ATOMIC):
        yield from _made_of(call.args[0], sources)
        return
    callee = getattr(inspect.unwrap(function), "__globals__", {}).get(name)
    callee = getattr(callee, "fn", callee)
    if not inspect.isfunction(callee) or callee is function:
        return
    into = stored(callee)
    passed = [*zip(inspect.signature(callee).parameters, call.args, strict=False)]
    passed += [(each.arg, each.value) for each in call.keywords if each.arg]
    for parameter, value in passed:
        if parameter in into:
            yield from _made_of(value, sources)


def _made_of(node: ast.AST, sources: dict[str, set[str]]) -> Iterator[str]:
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _LOADS:
        return
    if isinstance(node, ast.Name):
        yield from sources.get(node.id, ())
    for child in ast.iter_child_nodes(node):
        yield from _made_of(child, sources)


def _names(node: ast.AST) -> Iterator[str]:
    yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
