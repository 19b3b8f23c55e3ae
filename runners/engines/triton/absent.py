"""Refuses what Triton's compiler refuses, and its interpreter only where it comes by: an argument that is None, by
which code finds an address. A compiler translates both branches of a condition that it does not know, and the body of
every loop; a launch takes one of them, or none.

Only what is sure is refused: a condition that the compiler may know, and that is not known here, hides its branches.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.runtime import interpreter as triton_interpreter

# Unknown to the compiler: a tensor. Unknown here: the rest.
_RUNTIME, _UNKNOWN = object(), object()
_BY_ADDRESS = frozenset({"load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg"})
_TENSORS = _BY_ADDRESS | {"program_id", "num_programs", "arange", "sum", "max", "min", "minimum", "maximum", "cdiv"}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_Names = dict[str, Any]


def refuse(function: Callable[..., None], arguments: Mapping[str, Any], constexprs: frozenset[str]) -> None:
    """The compiler's CompilationError if the kernel finds addresses by an argument of this launch that is None."""
    absent = tuple(name for name, value in arguments.items() if value is None)
    if not absent:
        return
    known = tuple(
        (name, value)
        for name, value in arguments.items()
        if value is None or name in constexprs or isinstance(value, bool) or (isinstance(value, int) and value == 1)
    )
    try:
        used = _used(function, known, tuple(arguments))
    except TypeError:  # a constant that has no hash
        used = _first_use(function, known, tuple(arguments))
    if used:
        why = f"{function.__name__}: {used}, and it is None: Triton cannot compile this"
        raise CompilationError(why, ast.Pass())


def _first_use(function: Callable[..., None], known: Sequence[tuple[str, Any]], names: Sequence[str]) -> str:
    """The place at which an absent argument is made an address, in words; empty if none. known: what the compiler
    knows."""
    constants = {name: _plain(value) for name, value in known}
    return _translated(function, {**dict.fromkeys(names, _RUNTIME), **constants}, depth=0)


_used = functools.lru_cache(maxsize=4096)(_first_use)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _translated(function: Callable[..., None], names: _Names, depth: int) -> str:
    try:
        source = inspect.getsource(function)
    except OSError:  # it has no text
        return ""
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.FunctionDef)
    walk = _Walk(function.__globals__, names, depth=depth)
    walk.body(tree.body)
    return walk.used


@dataclass(slots=True)
class _Walk:
    """One function as it is translated. Mutable. names: what is known of each. used: the first use of an absent one."""

    scope: Mapping[str, Any]
    names: _Names
    used: str = ""
    depth: int = 0
    returned: bool = field(default=False, init=False)

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.returned or self.used:
                return
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If():
                self._either(self.value(statement.test), statement.body, statement.orelse)
            case ast.For():
                self._loop(statement)
            case ast.While():
                self._either(self.value(statement.test), statement.body, [])
            case ast.Return():
                if statement.value:
                    self.value(statement.value)
                self.returned = True
            case ast.Assign():
                self._assigned(statement.targets, self.value(statement.value))
            case ast.AnnAssign() if statement.value:
                value = self.value(statement.value)
                self._assigned([statement.target], value, constant="constexpr" in ast.unparse(statement.annotation))
            case ast.AugAssign():
                self.value(ast.BinOp(left=_loaded(statement.target), op=statement.op, right=statement.value))
                self._assigned([statement.target], _RUNTIME)
            case ast.Expr():
                self.value(statement.value)

    def _either(self, test: Any, body: Sequence[ast.stmt], otherwise: Sequence[ast.stmt]) -> None:
        if test is _UNKNOWN:
            self._forget([*body, *otherwise])
        elif test is _RUNTIME:
            for branch in (body, otherwise):
                self.body(branch)
                self.returned = False
        else:
            self.body(body if test else otherwise)

    def _loop(self, statement: ast.For) -> None:
        ends = self.value(statement.iter)
        if ends is _RUNTIME:
            self._assigned([statement.target], _RUNTIME)
            self.body(statement.body)
        else:
            self._forget(statement.body)

    def _forget(self, statements: Sequence[ast.stmt]) -> None:
        """Forget the values assigned in statements that may not be translated."""
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.names[node.id] = _UNKNOWN

    def _assigned(self, targets: Sequence[ast.expr], value: Any, *, constant: bool = False) -> None:
        """A number becomes a tensor, unless it is annotated as a constant."""
        number = isinstance(value, bool | int | float)
        kept = _RUNTIME if number and not constant else value
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self.names[node.id] = kept if node is target else _UNKNOWN

    # Expressions

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._named(node.id)
            case ast.BoolOp():
                return self._bool(node)
            case ast.IfExp():
                test = self.value(node.test)
                if test is _UNKNOWN:
                    return _UNKNOWN
                if test is not _RUNTIME:
                    return self.value(node.body if test else node.orelse)
                self.value(node.body), self.value(node.orelse)
                return _RUNTIME
            case ast.UnaryOp(op=ast.Not()):
                value = self.value(node.operand)
                return value if value is _RUNTIME or value is _UNKNOWN else not value
            case ast.Compare():
                return self._compared(node)
            case ast.BinOp():
                return self._computed(node)
            case ast.Call():
                return self._called(node)
            case ast.Attribute():
                self._address(node.value, "an attribute of {}")
                return _UNKNOWN
        parts = [self.value(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return _RUNTIME if _RUNTIME in parts and _UNKNOWN not in parts else _UNKNOWN

    def _named(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        value = _plain(self.scope.get(name, _UNKNOWN))
        return value if isinstance(value, bool | int | float) else _UNKNOWN

    def _bool(self, node: ast.BoolOp) -> Any:
        """In Triton's order: a constant ends it, or does not matter."""
        ends, left = isinstance(node.op, ast.Or), []
        for part in node.values:
            value = self.value(part)
            if value is _UNKNOWN:
                return _UNKNOWN
            if value is _RUNTIME:
                left.append(value)
            elif bool(value) is ends:
                return value
        return _RUNTIME if left else value

    def _compared(self, node: ast.Compare) -> Any:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        compare = _COMPARED.get(type(node.ops[0]))
        if len(values) > 2 or compare is None or _UNKNOWN in values:
            return _UNKNOWN
        if compare in (operator.is_, operator.is_not) and values[1] is None:
            return compare(values[0], None)
        return _RUNTIME if _RUNTIME in values else compare(*values)

    def _computed(self, node: ast.BinOp) -> Any:
        for side in (node.left, node.right):
            self._address(side, "{} is part of an address")
        values = [self.value(side) for side in (node.left, node.right)]
        return _RUNTIME if _RUNTIME in values and _UNKNOWN not in values else _UNKNOWN

    def _called(self, node: ast.Call) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        values = [self.value(part) for part in (*node.args, *(keyword.value for keyword in node.keywords))]
        if name in _BY_ADDRESS and node.args:
            self._address(node.args[0], "{} is an address")
        inner = self.scope.get(name)
        if isinstance(inner, triton_interpreter.InterpretedFunction) and not self.used:
            self._inside(inner.fn, node, values)
        if name == "range" and _UNKNOWN not in values:
            return _RUNTIME  # its body is translated whatever it goes over
        return _RUNTIME if name in _TENSORS else _UNKNOWN

    def _inside(self, function: Callable[..., None], node: ast.Call, values: Sequence[Any]) -> None:
        """A function that the kernel calls, which is translated with what is known of its arguments."""
        signature = inspect.signature(function)
        keywords = [keyword.arg for keyword in node.keywords]
        if self.depth > 8 or None in keywords or any(isinstance(part, ast.Starred) for part in node.args):
            return
        positional = values[: len(node.args)]
        named = dict(zip(keywords, values[len(node.args) :], strict=True))
        bound = signature.bind_partial(*positional, **named)  # type: ignore[arg-type]  # values of any type
        bound.apply_defaults()
        names = {name: _plain(value) for name, value in bound.arguments.items()}
        self.used = _translated(function, names, self.depth + 1)

    def _address(self, node: ast.expr, sentence: str) -> None:
        """node: what may be nothing but a pointer."""
        if isinstance(node, ast.Name) and not self.used and self.names.get(node.id, _UNKNOWN) is None:
            self.used = sentence.format(node.id)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target
