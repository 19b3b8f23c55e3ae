"""A key of a case's file: its name there, the field that it means, and how values of both become each other."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.cases import json_parts
from repro.cases.json_parts import Refused

NAME_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. Its name is sglang's in the newest release where sglang has one."""

    # The dataclass that has the field. The field is the key of format 1, too.
    owner: type
    field: str
    # The name in format 2, and those of older releases, which are read as well.
    name: str
    older: tuple[str, ...] = ()
    meaning: str
    # The values that a number, or a text, may have.
    bounds: tuple[int, int] | None = None
    choices: tuple[Any, ...] = ()
    # sglang names the reverse of the field, which is a truth.
    reversed: bool = False
    # sglang counts so many more than the field.
    offset: int = 0
    # Values that sglang writes in another form: (value, form).
    forms: tuple[tuple[Any, Any], ...] = ()

    @property
    def default(self) -> Any:
        """The default of the field; dataclasses.MISSING where every file says it."""
        return _defaults(self.owner)[self.field]

    @property
    def kind(self) -> Any:
        """The type of the field."""
        return _kinds(self.owner)[self.field]

    def form(self, value: Any) -> Any:
        """The value as format 2 has it."""
        for plain, form in self.forms:
            if plain == value:
                return form
        if isinstance(value, bool):
            return value != self.reversed
        return list(value) if isinstance(value, tuple) else value + self.offset if self.offset else value

    def value(self, part: str, form: object) -> Any:
        """The field's value that this means in format 2. Refused, by part and value."""
        for plain, known in self.forms:
            if form == known:
                return plain
        if self.forms and (self.kind is bool or form in [plain for plain, _ in self.forms]):
            known = " or ".join(json.dumps(known) for _, known in self.forms)
            raise Refused(f"{part}: expected {known}, not {json_parts.shown(form)}")
        value = self.plain(part, form)
        return value != self.reversed if self.kind is bool else value - self.offset if self.offset else value

    def plain(self, part: str, form: object) -> Any:
        """The value that this means in format 1: itself, if it is of the field's type. Refused, by part and value."""
        if self.kind is str:
            return json_parts.as_text(part, form, NAME_MAX)
        if self.kind is bool:
            return json_parts.as_truth(part, form)
        if self.kind is int:
            return json_parts.as_integer(part, form)
        items = json_parts.as_list(part, form)  # tuple[int, ...], the only other kind of field
        return tuple(json_parts.as_integer(f"{part}[{n}]", item) for n, item in enumerate(items))


@functools.cache
def _defaults(owner: type) -> Mapping[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(owner)}


@functools.cache
def _kinds(owner: type) -> Mapping[str, Any]:
    return typing.get_type_hints(owner)
