"""Conditions on a setup, as texts: "sliding_window", "not swa", "topk > 1", "page_size == 1", "num_steps > adaptive".

A name is sglang's, as in a case's file, or a field of Setup; each has the value that belongs to it. Or it is a fact of
the setup's model family or algorithm: "recurrent", "in_blocks".
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from repro.cases.case import Setup
from repro.cases.close_names import close_to
from repro.cases.families import is_latent, is_recurrent
from repro.cases.options import NAMED
from repro.cases.runner_facts import IN_BLOCKS

_CONDITION = re.compile(r"(?P<no>not )?(?P<left>\w+)|(?P<name>\w+) (?P<comparison>==|!=|<=|>=|<|>) (?P<right>\w+)")
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
# The options that a condition may name, those with one value.
_NAMED = {name: option for name, option in NAMED.items() if option.kind in (int, bool, str)}
# Facts of a model family or an algorithm that a condition may name, each with the field that it reads.
FACTS: dict[str, tuple[Callable[[Setup], bool], str]] = {
    "latent": (is_latent, "family"),
    "recurrent": (is_recurrent, "family"),
    "in_blocks": (lambda setup: setup.algorithm in IN_BLOCKS, "algorithm"),
}


class BadCondition(ValueError):
    """The text is no condition on a setup. One line, which says what it lacks."""


@functools.cache
def condition(text: str) -> Callable[[Setup], bool]:
    """A function that is True of the setups for which this holds. BadCondition."""
    match = _CONDITION.fullmatch(text)
    if not match:
        raise BadCondition(f'{text!r} is no condition such as "window", "not swa" or "topk > 1"')
    if match["left"] in FACTS:
        fact, _ = FACTS[match["left"]]
        return lambda setup: fact(setup) != bool(match["no"])
    if match["left"]:
        left, negative = _named(match["left"]), bool(match["no"])
        return lambda setup: bool(_value(setup, left)) != negative
    name, compare, right = _named(match["name"]), _HOLDS[match["comparison"]], match["right"]
    kind = _NAMED[name].kind
    if right in _NAMED and _NAMED[right].kind is kind is int:
        return lambda setup: compare(_value(setup, name), _value(setup, right))
    if kind is int and right.isdecimal():
        return lambda setup: compare(_value(setup, name), int(right))
    if kind is str and match["comparison"] in ("==", "!="):
        return lambda setup: compare(_value(setup, name), right)
    raise BadCondition(f"{text!r}: {name} cannot be compared so")


def names(text: str) -> tuple[str, ...]:
    """The fields of a setup that the condition reads."""
    fields = {name: option.field for name, option in _NAMED.items()}
    fields |= {name: field for name, (_, field) in FACTS.items()}
    return tuple(fields[word] for word in re.findall(r"\w+", text) if word in fields)


def _named(name: str) -> str:
    if name not in _NAMED:
        raise BadCondition(f"{name!r} is no option with one value{close_to(name, [*_NAMED, *FACTS])}")
    return name


def _value(setup: Setup, name: str) -> Any:
    option = _NAMED[name]
    value = getattr(setup, option.field)
    return value if name == option.field else option.form(value)
