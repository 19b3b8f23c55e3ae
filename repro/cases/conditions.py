"""Conditions on a setup, as texts: "window", "not swa", "topk > 1", "num_steps > adaptive", "algorithm == EAGLE3"."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from repro.cases.case import Setup

_CONDITION = re.compile(r"(?P<no>not )?(?P<left>\w+)|(?P<name>\w+) (?P<comparison>==|!=|<=|>=|<|>) (?P<right>\w+)")
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
# The kind of each field that a condition may name.
_KINDS = {field.name: field.type for field in fields(Setup) if field.type in ("int", "bool", "str")}


class BadCondition(ValueError):
    """The text is no condition on a setup. One line, which says what it lacks."""


@functools.cache
def condition(text: str) -> Callable[[Setup], bool]:
    """A function that is True of the setups for which this holds. BadCondition."""
    match = _CONDITION.fullmatch(text)
    if not match:
        raise BadCondition(f'{text!r} is no condition such as "window", "not swa" or "topk > 1"')
    if match["left"]:
        named, negative = _field(match["left"]), bool(match["no"])
        return lambda setup: bool(getattr(setup, named)) != negative
    named, compare, right = _field(match["name"]), _HOLDS[match["comparison"]], match["right"]
    if right in _KINDS and _KINDS[right] == _KINDS[named] == "int":
        return lambda setup: compare(getattr(setup, named), getattr(setup, right))
    if _KINDS[named] == "int" and right.isdecimal():
        return lambda setup: compare(getattr(setup, named), int(right))
    if _KINDS[named] == "str" and match["comparison"] in ("==", "!="):
        return lambda setup: compare(getattr(setup, named), right)
    raise BadCondition(f"{text!r}: {named} cannot be compared so")


def names(text: str) -> tuple[str, ...]:
    """The fields of a setup that the condition reads."""
    return tuple(word for word in re.findall(r"\w+", text) if word in _KINDS)


def _field(name: str) -> str:
    if name not in _KINDS:
        raise BadCondition(f"{name!r} is no field of a setup with one value")
    return name
