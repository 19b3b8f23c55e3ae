"""Attributes that methods of sglang's objects read and that nothing makes: no method of the class, no class, no session
that built the object; and those that a worker should have once it is constructed. Calling such a method raises,
be it a method that no session calls.

Read from bytecode, since a session would take longer to parse its classes than to open. What follows an `and` or an
`or` is left out: it may be unread on purpose.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from runners.sessions.attributes import DEPTH, looked_into

_SKIPPED = {dis.opmap[name] for name in ("CACHE", "PRECALL", "NOP", "RESUME", "NOT_TAKEN") if name in dis.opmap}
# What puts a local on top, and of two in one instruction, whose places have four bits each, the second.
_LOCALS = {
    dis.opmap[name] for name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF") if name in dis.opmap
}
_SECOND_LOCALS = {
    dis.opmap[name]
    for name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST")
    if name in dis.opmap
}
_LOADS = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap}
_STORES = {dis.opmap["STORE_ATTR"]}
# Since 3.12 LOAD_ATTR's lowest bit says whether a method is called.
_SHIFT = {dis.opmap["LOAD_ATTR"]: 1 if sys.version_info >= (3, 12) else 0}
# The second operand of an `and` or an `or` follows one of these; since 3.12, a jump and a POP_TOP.
_ALTERNATIVES = {code for name, code in dis.opmap.items() if name.startswith("JUMP_IF") and name.endswith("OR_POP")}
_JUMPS = {code for name, code in dis.opmap.items() if name.startswith("POP_JUMP_IF")}
_POP = dis.opmap["POP_TOP"]


def unmade(roots: Mapping[str, Any]) -> list[str]:
    """The unmade attributes, as Class.attribute, of all objects of sglang's that these lead to."""
    names = set()
    for instance in _objects(list(roots.values())):
        read, made = _attributes(type(instance))
        names |= {f"{type(instance).__name__}.{name}" for name in read - made if not _has(instance, name)}
    return sorted(names)


def absent(worker: Any) -> list[str]:
    """The attributes, as Class.attribute, that methods of a constructed worker read and others of them make, and it has
    not: its maker was not called."""
    read, made = _attributes(type(worker))
    return sorted(f"{type(worker).__name__}.{name}" for name in read & made if not _has(worker, name))


def _objects(roots: list[Any]) -> Iterator[Any]:
    """The objects of sglang's, each once."""
    seen: set[int] = set()
    waiting = [(root, DEPTH) for root in roots]
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple | dict):
            inner = list(value.values()) if isinstance(value, dict) else list(value)
        elif looked_into(value):
            yield value
            inner = list(vars(value).values())
        else:
            continue
        waiting += [(part, depth - 1) for part in inner if depth]


# _noted() of each class, as a process serves setup after setup of the same ones.
_known: WeakKeyDictionary[type, tuple[frozenset[str], frozenset[str]]] = WeakKeyDictionary()


def _attributes(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes that methods of sglang's classes read of their own object, but for those that a class before them
    replaces; and what they make. Nothing of a class that makes attributes up."""
    if kind not in _known:
        _known[kind] = _noted(kind)
    return _known[kind]


def _noted(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    if any("__getattr__" in vars(base) for base in kind.__mro__):
        return frozenset(), frozenset()
    read, made, replaced = set[str](), set[str](), set[str]()
    for base in kind.__mro__:
        if base.__module__.startswith("sglang."):
            for name, member in vars(base).items():
                for code in _codes(member):
                    _note(code, set() if name in replaced else read, made)
        replaced |= vars(base).keys()
    return frozenset(read), frozenset(made)


def _codes(member: Any) -> Iterator[CodeType]:
    """The code of a function or a property, under its decorators too, and of the functions within."""
    functions = [getattr(member, name, None) for name in ("fget", "fset", "__func__", "__wrapped__", "func")]
    waiting = [part.__code__ for part in (member, *functions) if isinstance(part, FunctionType)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _note(code: CodeType, read: set[str], made: set[str]) -> None:
    if "self" not in code.co_varnames and "self" not in code.co_freevars:
        return
    names = (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames), *code.co_freevars)
    last, before, of_self, argument = 0, 0, False, 0
    instructions = code.co_code
    for place in range(0, len(instructions), 2):
        operation, low = instructions[place], instructions[place + 1]
        argument = argument << 8 | low
        if operation == dis.EXTENDED_ARG:
            continue
        if operation in _LOADS and of_self:
            read.add(code.co_names[argument >> _SHIFT.get(operation, 0)])
        elif operation in _STORES and of_self:
            made.add(code.co_names[argument])
        if operation not in _SKIPPED:
            alternative = last in _ALTERNATIVES or (last == _POP and before in _JUMPS)
            local = argument if operation in _LOCALS else argument & 15 if operation in _SECOND_LOCALS else None
            of_self = local is not None and not alternative and names[local] == "self"
            before, last = last, operation
        argument = 0


def _has(instance: Any, name: str) -> bool:
    """Without running a property."""
    return inspect.getattr_static(instance, name, _has) is not _has
