"""Operators on expressions: what a small slip makes of one. Each gives (operator, the expression in its place)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

Slip = tuple[str, ast.expr]
# Of an expression and the names that its function uses.
Operator = Callable[[ast.expr, frozenset[str]], Iterator[Slip]]

# Sizes of a batch, before and after it is padded to a bucket.
RAW = {
    "raw_bs": "bs",
    "raw_num_token": "num_tokens",
    "raw_num_tokens": "num_tokens",
    "raw_num_tokens_per_bs": "num_tokens_per_bs",
    "real_bs": "bs",
    "batch_size": "bs",
}
PADDED = {padded: raw for raw, padded in reversed(RAW.items())}
ALLOCATIONS = {"zeros", "empty", "ones", "full", "arange", "new_zeros", "new_empty", "new_full", "new_ones"}
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
EXTREMES = {"min": "max", "minimum": "maximum", "max": "min", "maximum": "minimum", "amin": "amax", "amax": "amin"}
BISECTIONS = {"bisect_left": "bisect_right", "bisect_right": "bisect_left", "bisect": "bisect_left"}
INTEGERS = {"int64": "int32", "int32": "int64"}


def shifted(node: ast.expr, by: int) -> ast.expr:
    """The expression and a number more."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def comparisons(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        flipped = FLIPPED[type(node.ops[0])]()
        bound = isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        yield "bound" if bound else "guard", ast.Compare(node.left, [flipped], node.comparators)
        if bound:
            yield "bound", ast.Compare(node.left, node.ops, [shifted(node.comparators[0], -1)])


def conditions(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield "guard", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        yield "mask", node.left
        yield "mask", node.right
    if isinstance(node, ast.IfExp):
        yield "guard", node.body
        yield "guard", node.orelse
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "guard", node.operand


def arithmetic(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    if not isinstance(node, ast.BinOp) or any(_is_text(side) for side in (node.left, node.right)):
        return
    if isinstance(node.op, ast.Mult | ast.FloorDiv | ast.Div):
        yield "factor", node.left
    if isinstance(node.op, ast.Mult):
        yield "factor", node.right
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mod):
        yield "term", node.left
    if isinstance(node.op, ast.Add):
        yield "term", node.right
        yield "term", ast.BinOp(node.left, ast.Sub(), node.right)
    if isinstance(node.op, ast.Sub):
        yield "term", ast.BinOp(node.left, ast.Add(), node.right)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and not isinstance(node.value, int))


def places(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    """Slices and indices one off."""
    if not isinstance(node, ast.Subscript):
        return
    kind = "indptr" if "indptr" in ast.unparse(node.value) else "slice"
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for index, part in enumerate(parts):
        for other in _moved(part):
            changed = [*parts[:index], other, *parts[index + 1 :]]
            where = ast.Tuple(changed, ast.Load()) if isinstance(node.slice, ast.Tuple) else changed[0]
            yield kind, ast.Subscript(node.value, where, node.ctx)


def _moved(part: ast.expr) -> Iterator[ast.expr]:
    if isinstance(part, ast.Slice):
        if part.upper is not None:
            yield ast.Slice(part.lower, shifted(part.upper, -1), part.step)
            yield ast.Slice(part.lower, shifted(part.upper, 1), part.step)
            yield ast.Slice(part.lower, None, part.step)
        if part.lower is not None:
            yield ast.Slice(None, part.upper, part.step)
            yield ast.Slice(shifted(part.lower, 1), part.upper, part.step)
    elif isinstance(part, ast.Constant) and type(part.value) is int:
        yield ast.Constant(part.value + 1)
    elif isinstance(part, ast.Name | ast.Attribute | ast.BinOp):
        yield shifted(part, 1)


def sizes(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    """Raw for padded and padded for raw, where the function knows both."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    for table in (RAW, PADDED):
        other = table.get(name)
        if other and other in names:
            yield "raw for padded", renamed(node, other)


def renamed(node: ast.expr, name: str) -> ast.expr:
    """A name or an attribute under another name."""
    return ast.Attribute(node.value, name, ast.Load()) if isinstance(node, ast.Attribute) else ast.Name(name)


def calls(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    if not isinstance(node, ast.Call):
        return
    name = _called(node)
    # Blocks of a kernel are no memory, and a power of two long.
    if name in ALLOCATIONS and node.args and not ast.unparse(node.func).startswith("tl."):
        # Of a range with a beginning, the end says how long it is.
        sized = 1 if name == "arange" and len(node.args) > 1 else 0
        for size in _shorter(node.args[sized]):
            yield "allocation", ast.Call(node.func, [*node.args[:sized], size, *node.args[sized + 1 :]], node.keywords)
    if name in EXTREMES and isinstance(node.func, ast.Name | ast.Attribute):
        yield "min for max", ast.Call(renamed(node.func, EXTREMES[name]), node.args, node.keywords)
        if len(node.args) == 2:
            yield "min for max", node.args[0]
            yield "min for max", node.args[1]
    if name in BISECTIONS and isinstance(node.func, ast.Name | ast.Attribute):
        yield "bucket", ast.Call(renamed(node.func, BISECTIONS[name]), node.args, node.keywords)
        if len(node.args) == 2:
            yield "bucket", ast.Call(node.func, [node.args[0], shifted(node.args[1], 1)], node.keywords)
    if name == "range":
        last = 0 if len(node.args) == 1 else 1
        ends = [*node.args[:last], shifted(node.args[last], -1), *node.args[last + 1 :]] if node.args else []
        yield "bound", ast.Call(node.func, ends, [])
    if name == "to" and isinstance(node.func, ast.Attribute) and any(_integer(arg) for arg in node.args):
        yield "dtype", node.func.value


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _shorter(size: ast.expr) -> Iterator[ast.expr]:
    """A size with one element less, in one of its dimensions."""
    if not isinstance(size, ast.Tuple | ast.List):
        yield shifted(size, -1)
        return
    for index, part in enumerate(size.elts):
        parts = [*size.elts[:index], shifted(part, -1), *size.elts[index + 1 :]]
        yield ast.Tuple(parts, ast.Load())


def masks(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    """A load or a store in a kernel without its mask, or without what is read where the mask is off."""
    if not isinstance(node, ast.Call) or _called(node) not in ("load", "store"):
        return
    for index, keyword in enumerate(node.keywords):
        # Lanes that a mask keeps from loading hold zero as it is, by Triton's compiler and by its interpreter.
        if keyword.arg == "mask" or (keyword.arg == "other" and not _is_zero(keyword.value)):
            rest = [*node.keywords[:index], *node.keywords[index + 1 :]]
            kept = [k for k in rest if k.arg != "other"] if keyword.arg == "mask" else rest
            yield "mask", ast.Call(node.func, node.args, kept)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def arguments(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    """Two neighbouring arguments in each other's place."""
    if not isinstance(node, ast.Call) or _called(node) in ("getattr", "isinstance", "hasattr", "cdiv", *EXTREMES):
        return
    for index, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if all(isinstance(arg, ast.Name | ast.Attribute | ast.Subscript) for arg in (left, right)):
            swapped = [*node.args[:index], right, left, *node.args[index + 2 :]]
            yield "argument order", ast.Call(node.func, swapped, node.keywords)


def dtypes(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    if isinstance(node, ast.Attribute) and _integer(node):
        yield "dtype", renamed(node, INTEGERS[node.attr])


def _integer(node: ast.expr) -> bool:
    owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    return isinstance(node, ast.Attribute) and node.attr in INTEGERS and owner in ("torch", "tl")


def constants(node: ast.expr, names: frozenset[str]) -> Iterator[Slip]:
    """A number that is handed over, one off."""
    if not isinstance(node, ast.Call) or _called(node) in (ALLOCATIONS | {"range"}):
        return
    for index, argument in enumerate(node.args):
        if isinstance(argument, ast.Constant) and type(argument.value) is int:
            changed = [*node.args[:index], shifted(argument, 1), *node.args[index + 1 :]]
            yield "constant", ast.Call(node.func, changed, node.keywords)


OPERATORS: Sequence[Operator] = (
    comparisons,
    conditions,
    arithmetic,
    places,
    sizes,
    calls,
    masks,
    arguments,
    dtypes,
    constants,
)
