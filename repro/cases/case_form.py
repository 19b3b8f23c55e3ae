"""A case as plain dicts and lists.

Format 2 has a setup's server_args, model and draft_model apart, under sglang's names; format 1 has all fields of Setup
in one object. Data only: nothing in it is executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repro.cases.case import Case, Request, Setup, Step
from repro.cases.close_names import close_to
from repro.cases.json_parts import Refused, as_fields, as_list, as_object, shown
from repro.cases.key import Key
from repro.cases.option import DRAFT, HARNESS, SERVER, TARGET, Option
from repro.cases.options import OPTIONS
from repro.cases.step_keys import REQUEST, STEP

FLAT, NESTED = 1, 2
SECTIONS = (SERVER, TARGET, DRAFT)
_REQUIRED = tuple(option for option in OPTIONS if option.default is dataclasses.MISSING)
Form = dict[str, Any]


def case_to_json(case: Case) -> Form:
    """The case in format 2, in the file's key order."""
    steps = [
        {"requests": [_set(REQUEST, request) for request in step.requests]} | _set(STEP, step) for step in case.steps
    ]
    return {"setup": _setup_to_form(case.setup), "steps": steps}


def case_of_form(fields: Mapping[str, object]) -> Case:
    """The case of these two parts, in either format. Refused, by part and value, if a part is missing or wrong."""
    nested = isinstance(fields["setup"], dict) and SERVER in fields["setup"]
    return case_of(fields, NESTED if nested else FLAT)


def case_of(fields: Mapping[str, object], number: int) -> Case:
    """The case of these two parts in the format of this number. Refused, as of case_of_form."""
    setup = _nested(fields["setup"]) if number == NESTED else _flat(fields["setup"])
    steps = as_list("steps", fields["steps"])
    return Case(setup=setup, steps=tuple(_step(f"steps[{n}]", step, number) for n, step in enumerate(steps)))


def _setup_to_form(setup: Setup) -> Form:
    """Options that came later are written only where they are set."""
    form: Form = {part: {} for part in (HARNESS, *SECTIONS)}
    for option in OPTIONS:
        if option.is_set(setup) or not option.later:
            form[option.part_of(setup.runner)][option.name] = option.form(getattr(setup, option.field))
    return {**form.pop(HARNESS), **{part: keys for part, keys in form.items() if keys}}


def _set(keys: Iterable[Key], of: Step | Request) -> Form:
    """The keys that are not at their defaults."""
    values = ((key, getattr(of, key.field)) for key in keys)
    return {key.name: key.form(value) for key, value in values if value != key.default}


def _nested(value: object) -> Setup:
    form = as_object("setup", value)
    rows: dict[tuple[str, str], Option] = {
        (option.part_of(str(form.get("runner"))), name): option
        for option in OPTIONS
        for name in (option.name, *option.older)
    }
    values: dict[str, Any] = {}
    for part, name, item in _items(form):
        place = _place(part)
        if (part, name) not in rows:
            raise Refused(f"{place}: {_why_unknown(part, name, rows)}")
        option = rows[part, name]
        if option.field in values:
            raise Refused(f"{place}: {name} is {option.name}, which is there, too")
        values[option.field] = option.value(f"{place}.{name}", item)
    for option in _REQUIRED:
        if option.field not in values:
            raise Refused(f"{_place(option.part)}: {option.name} is missing")
    return Setup(**values)


def _items(form: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Part, name and value of each key."""
    for name, value in form.items():
        if name in SECTIONS:
            yield from ((name, inner, item) for inner, item in as_object(_place(name), value).items())
        else:
            yield HARNESS, name, value


def _why_unknown(part: str, name: str, rows: Mapping[tuple[str, str], Option]) -> str:
    for other, right in rows:
        if right == name:
            return f"{name} belongs in {_place(other)}"
    for option in OPTIONS:
        if option.field == name:
            return f"{name} is a key of format 1; in format 2 it is {option.name} in {_place(option.part)}"
    here = sorted(right for other, right in rows if other == part)
    close = close_to(name, (right for _, right in rows))
    return f"unknown key {shown(name)}{close or '; known are ' + ', '.join(here)}"


def _flat(value: object) -> Setup:
    rows = {option.field: option for option in OPTIONS}
    form = as_object("setup", value)
    for name in SECTIONS:
        if name in form:
            raise Refused(f"setup: {name} is a key of format 2, and this is format 1")
    as_fields("setup", form, required={option.field for option in _REQUIRED}, optional=rows.keys())
    return Setup(**{name: rows[name].plain(f"setup.{name}", item) for name, item in form.items()})


def _place(part: str) -> str:
    return "setup" if part == HARNESS else f"setup.{part}"


def _step(place: str, value: object, number: int) -> Step:
    fields = _keys(place, value, STEP, number, {"requests"})
    items = as_list(f"{place}.requests", as_object(place, value)["requests"])
    requests = (
        Request(**_keys(f"{place}.requests[{n}]", item, REQUEST, number, set())) for n, item in enumerate(items)
    )
    return Step(requests=tuple(requests), **fields)


def _keys(place: str, value: object, keys: tuple[Key, ...], number: int, others: set[str]) -> dict[str, Any]:
    """The fields that these keys mean. others: keys that there are besides."""
    names = {(key.field, key.name) if number == FLAT else (key.name, key.field): key for key in keys}
    rows = {name: key for (name, _), key in names.items()}
    form = as_object(place, value)
    for name, elsewhere in names:
        if elsewhere in form and elsewhere not in rows:
            raise Refused(f"{place}: {elsewhere} is a key of format {FLAT + NESTED - number}; here it is {name}")
    required = {name for name, key in rows.items() if key.default is dataclasses.MISSING}
    as_fields(place, form, required=required | others, optional=rows.keys())
    read = Key.value if number == NESTED else Key.plain
    return {rows[name].field: read(rows[name], f"{place}.{name}", item) for name, item in form.items() if name in rows}
