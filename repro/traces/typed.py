"""Values that were read from a file: each field of the kind that its class says."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from typing import Any

Made = typing.TypeVar("Made")


class BadRecord(ValueError):
    """The text is not a record; the message names the part that was refused."""


def typed(built: Made) -> Made:
    """The value itself if every field is of the kind that its class says. BadRecord, naming the field, if not."""
    kind: Any = type(built)
    for name, hint in _hints(kind).items():
        if not _fits(getattr(built, name), hint):
            raise BadRecord(f"{kind.__name__}.{name}: a value of the wrong kind")
    return built


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if origin is not None:  # a union
        return any(_fits(value, part) for part in parts)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
