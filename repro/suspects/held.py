"""Holders of things that a failing line was given, for lines that work for every caller."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from repro.suspects.clues import Clues, Suspect
from repro.suspects.statements import Does, plain, tree
from repro.suspects.way import BUILD, CAPTURE, Function

_MODELS = "sglang/srt/models/"
_STEPS = 4  # from a setter up
_SETS = (Does.MAKES, Does.ASSIGNS)


def of_model(clues: Clues, frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """A model computes with what it is given: who makes what the functions on the way to it give under that name."""
    if not frames or not frames[0].file.startswith(_MODELS):
        return
    names = {name for node in clues.statements_at(frames[:1]) for name in _parts_of_others(node)}
    files = {frame.file for frame in frames if not frame.file.startswith(_MODELS)}
    for ran in clues.way.during(BUILD, CAPTURE):
        for line in clues.uses(ran, names, (Does.ASSIGNS,)) if ran.file in files else ():
            owners = {name for node in clues.statements_at([Suspect(ran.function, line, "")]) for name in _own(node)}
            for maker in clues.by_name((BUILD, CAPTURE), owners - names, _SETS, "it makes what the model is given"):
                if _class(maker.function) == _class(ran.function):
                    yield maker


def of_caller(clues: Clues, frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """A method that several classes call has no room: who makes the object, in the class that calls it."""
    for node in clues.statements_at(frames[1:2]):
        called = {plain(_leaf(each)) for each in _receivers(node)} - {"self", ""}
        called |= {name for local in called for name in _local(clues, frames[1], local)}
        for maker in clues.by_name((BUILD, CAPTURE), called, _SETS, "it makes this object, which has no room"):
            if _class(maker.function) == _class(frames[1].function):
                yield maker


def switched(clues: Clues, frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """A model goes by what it was told: who tells it, outside of models first."""
    if not frames or not frames[0].file.startswith(_MODELS):
        return
    names = set(_conditions(clues, frames[0]))
    files = {frame.file for frame in frames[1:] if not frame.file.startswith(_MODELS)}
    phases = (BUILD, CAPTURE)
    setters = clues.by_name(phases, names, (Does.ASSIGNS,), "it sets what this line goes by")
    of_class = [each for each in setters if each.file == frames[0].file and not each.function[1].endswith("__init__")]
    way: list[Suspect] = []
    for setter in of_class:
        function = setter.function
        for _ in range(_STEPS):
            callers = list(clues.callers(function, phases, f"it has {setter.function[1]} say what this line goes by"))
            way += callers
            function = callers[0].function if callers else function
    yield from sorted((*way, *of_class), key=lambda suspect: suspect.file not in files)


def _conditions(clues: Clues, frame: Suspect) -> Iterator[str]:
    """The attributes that the conditions around a line ask for."""
    for node in ast.walk(tree(clues.text(frame.file))):
        if isinstance(node, ast.If) and node.body[0].lineno <= frame.line <= (node.end_lineno or 0):
            yield from (plain(each.attr) for each in ast.walk(node.test) if isinstance(each, ast.Attribute))


def _parts_of_others(statement: ast.stmt) -> Iterator[str]:
    """The last names of attributes of attributes, as in batch.spec_info.hidden_states, that are not called."""
    nodes = list(ast.walk(statement))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and id(node) not in called:
            yield plain(node.attr)


def _own(statement: ast.stmt) -> Iterator[str]:
    """The attributes of self that a statement has."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and _leaf(node.value) == "self":
            yield plain(node.attr)


def _local(clues: Clues, frame: Suspect, name: str) -> Iterator[str]:
    """The attributes of self that a function sets a name to."""
    rans = (ran for rans in clues.way.phases.values() for ran in rans if ran.function == frame.function)
    lines = {line for ran in rans for line in clues.uses(ran, {name}, (Does.ASSIGNS,))}
    for line in sorted(lines):
        for node in clues.statements_at([Suspect(frame.function, line, "")]):
            yield from _own(node)


def _receivers(statement: ast.stmt) -> Iterator[ast.expr]:
    """The objects of which a statement calls a method."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.value


def _leaf(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _class(function: Function) -> Function:
    return function[0], function[1].rpartition(".")[0]
