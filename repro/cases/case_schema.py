"""The JSON Schema of a seed file, made from the rows of options: what editors complete and check while a case is
written. That a case is valid is left to repro check, which knows what options need of each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from repro.cases.case import STEPS_MAX
from repro.cases.case_form import SECTIONS
from repro.cases.codec import FORMAT, NAME_MAX, TEXT_MAX
from repro.cases.key import Key
from repro.cases.option import DRAFT, HARNESS, Option
from repro.cases.options import BATCH_MAX, CONTEXT_MAX, OPTIONS, SLOTS_MAX
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.step_keys import REQUEST, STEP

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = {"type": "string", "maxLength": TEXT_MAX}


def schema() -> dict[str, Any]:
    """The schema, in the file's key order."""
    return {
        "$schema": DIALECT,
        "title": "eagleeye case",
        "type": "object",
        "required": ["format", "setup", "steps"],
        "additionalProperties": False,
        "properties": {
            "format": {"const": FORMAT},
            "about": {"type": "object", "additionalProperties": _about(), "propertyNames": {"maxLength": NAME_MAX}},
            "setup": _setup(),
            "steps": {"type": "array", "minItems": 1, "maxItems": STEPS_MAX, "items": _step()},
        },
    }


def _about() -> dict[str, Any]:
    named = {"type": "object", "additionalProperties": _TEXT, "propertyNames": {"maxLength": NAME_MAX}}
    return {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}, named]}


def _setup() -> dict[str, Any]:
    sections = {part: _object(_options_of(part)) for part in SECTIONS}
    form = _object(_options_of(HARNESS))
    required = [*form["required"], *(part for part in SECTIONS if sections[part]["required"])]
    return form | {"required": required, "properties": form["properties"] | sections}


def _options_of(part: str) -> list[Option]:
    """The rows whose key may stand in this part, of one runner or another."""
    drafted = [option for option in OPTIONS if any(map(option.drafted, RUNNER_FACTS.values()))]
    return [option for option in OPTIONS if option.part == part or (part == DRAFT and option in drafted)]


def _step() -> dict[str, Any]:
    form = _object(STEP)
    requests = {"type": "array", "maxItems": SLOTS_MAX, "items": _object(REQUEST)}
    return form | {"required": ["requests"], "properties": {"requests": requests} | form["properties"]}


def _object(keys: Iterable[Key]) -> dict[str, Any]:
    keys = list(keys)
    return {
        "type": "object",
        "required": [key.name for key in keys if key.default is dataclasses.MISSING],
        "additionalProperties": False,
        "properties": {key.name: _value(key) for key in keys},
    }


def _value(key: Key) -> dict[str, Any]:
    form: dict[str, Any] = {"description": key.meaning}
    if _has_default(key):
        form["default"] = key.form(key.default)
    if key.choices:
        return form | {"enum": _choices(key)}
    if key.kind is bool:
        return form | ({"const": key.form(True)} if key.forms else {"type": "boolean"})
    if key.kind is int:
        low, high = _bounds(key) or (2, CONTEXT_MAX)
        return form | {"type": "integer", "minimum": low, "maximum": high}
    numbers = {"type": "integer", "minimum": 1, "maximum": BATCH_MAX}
    return form | {"type": "array", "minItems": 1, "uniqueItems": True, "items": numbers}


def _has_default(key: Key) -> bool:
    """False too for a truth that sglang has another form of, and none for its absence."""
    return key.default is not dataclasses.MISSING and not (key.forms and key.kind is bool)


def _choices(key: Key) -> list[Any]:
    return [key.form(choice) for choice in key.choices]


def _bounds(key: Key) -> tuple[int, int] | None:
    return key.bounds and (key.bounds[0] + key.offset, key.bounds[1] + key.offset)


def text() -> str:
    """The schema as docs/case.schema.json has it."""
    return json.dumps(schema(), indent=1) + "\n"


def table() -> str:
    """The keys in Markdown, as docs/cases.md has them."""
    titles = {HARNESS: "Keys of `setup` itself"} | {part: f"Keys of `{part}`" for part in SECTIONS}
    groups: dict[str, Sequence[Key]] = {title: _options_of(part) for part, title in titles.items()}
    groups |= {"Keys of a step, besides `requests`": STEP, "Keys of a request": REQUEST}
    return "\n".join("\n".join([f"### {title}", "", *_rows(keys), ""]) for title, keys in groups.items())


def _rows(keys: Iterable[Key]) -> Iterator[str]:
    yield "| key | format 1 | default | meaning | values |"
    yield "|---|---|---|---|---|"
    for key in keys:
        default = f"`{json.dumps(key.form(key.default))}`" if _has_default(key) else ""
        old = "" if key.field == key.name else f"`{key.field}`"
        yield f"| `{key.name}` | {old} | {default} | {key.meaning} | {_values(key)} |"


def _values(key: Key) -> str:
    if key.choices:
        return ", ".join(map(str, filter(None, _choices(key))))
    if key.forms:
        return f"`{json.dumps(key.form(True))}`"
    bounds = _bounds(key)
    return f"{bounds[0]} to {bounds[1]}" if bounds else ""
