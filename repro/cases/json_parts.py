"""JSON that others wrote, read part by part: each part is of the expected type or refused by its name and value."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass

from repro.cases.close_names import close_to

INTEGER_MAX = 2**63 - 1
_SHOWN_MAX = 80


class Refused(ValueError):
    """The text, one line, names the part and the value that were refused."""


@dataclass(frozen=True, slots=True)
class _Twice:
    """Stands for an object that names a key twice, until the part it belongs to is known."""

    key: str


def parse(text: str) -> object:
    """The JSON value of this text; what JSON lets pass (NaN, a key named twice) is refused when it is looked at."""
    if not text.strip():
        raise Refused("the text is empty")
    try:
        return json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise Refused(f"the text ends too early, at line {error.lineno} column {error.colno}") from error
        raise Refused(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError:
        raise Refused("objects or lists are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits, which Python will not read
        raise Refused(f"not to be read: {error}") from error


def as_object(part: str, value: object) -> dict[str, object]:
    """The value, if it is an object that names no key twice."""
    if not isinstance(value, dict):
        raise Refused(f"{part}: expected an object, not {shown(value)}")
    return value


def as_fields(part: str, value: object, *, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, object]:
    """The value, if it is an object with all of the required keys and none beyond the optional ones."""
    fields = as_object(part, value)
    known = required | optional
    for key in fields:
        if key not in known:
            close = close_to(key, known)
            raise Refused(f"{part}: unknown key {shown(key)}{close or '; known are ' + ', '.join(sorted(known))}")
    for key in sorted(required - fields.keys()):
        raise Refused(f"{part}: {key} is missing")
    return fields


def as_list(part: str, value: object) -> list[object]:
    """The value, if it is a list."""
    if not isinstance(value, list):
        raise Refused(f"{part}: expected a list, not {shown(value)}")
    return value


def as_integer(part: str, value: object) -> int:
    """The value, if it is an integer of at most 64 bits."""
    # bool is a subclass of int, and true is no slot.
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{part}: expected an integer, not {shown(value)}")
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise Refused(f"{part}: {shown(value)} is beyond 64 bits")
    return value


def as_truth(part: str, value: object) -> bool:
    """The value, if it is true or false."""
    if not isinstance(value, bool):
        raise Refused(f"{part}: expected true or false, not {shown(value)}")
    return value


def as_text(part: str, value: object, length_max: int) -> str:
    """The value, if it is a text of at most this many characters, on one line and printable."""
    if not isinstance(value, str):
        raise Refused(f"{part}: expected a text, not {shown(value)}")
    if len(value) > length_max:
        raise Refused(f"{part}: a text of {len(value)} characters is longer than {length_max}")
    # Texts are shown in terminals and pages: no line breaks, escape codes or half characters.
    if not value.isprintable():
        raise Refused(f"{part}: {shown(value)} holds a character that cannot be printed")
    return value


def shown(value: object) -> str:
    """The value about as it stood in the text, shortened."""
    if isinstance(value, _Twice):
        return f"one with {shown(value.key)} twice"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    # Python turns no integer of thousands of digits into text, so large ones are only measured.
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return cut(json.dumps(value, default=repr), _SHOWN_MAX)


def cut(text: str, length_max: int) -> str:
    """The text, with an ellipsis for what is beyond the limit."""
    return text if len(text) <= length_max else text[: length_max - 3] + "..."


def plain(text: str, length_max: int) -> str:
    """Any text as one that as_text accepts."""
    line = " ".join(text.split())
    return cut("".join(c if c.isprintable() else "?" for c in line), length_max)


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object] | _Twice:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            return _Twice(key)
        members[key] = value
    return members
