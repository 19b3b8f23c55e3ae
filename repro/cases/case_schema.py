"""The JSON Schema of a seed file, made from the rows of options: what editors complete and check while a case is
written. That a case is valid is left to repro check, which knows what options need of each other."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from repro.cases.case import DATA_MAX, HIDDEN, LAYOUTS_MAX, STEPS_MAX, WAIT_MAX
from repro.cases.codec import FORMAT, NAME_MAX, TEXT_MAX
from repro.cases.option import HARNESS, Option
from repro.cases.options import BATCH_MAX, CONTEXT_MAX, OPTION, SLOTS_MAX
from repro.cases.setup import Setup

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = {"type": "string", "maxLength": TEXT_MAX}


def schema() -> dict[str, Any]:
    """The schema, in the file's key order."""
    fields = [f.name for f in dataclasses.fields(Setup)]
    return {
        "$schema": DIALECT,
        "title": "eagleeye case",
        "type": "object",
        "required": ["format", "setup", "steps"],
        "additionalProperties": False,
        "properties": {
            "format": {"const": FORMAT},
            "about": {"type": "object", "additionalProperties": _about(), "propertyNames": {"maxLength": NAME_MAX}},
            "setup": {
                "type": "object",
                "required": [name for name in fields if OPTION[name].default is dataclasses.MISSING],
                "additionalProperties": False,
                "properties": {name: _option(OPTION[name]) for name in fields},
            },
            "steps": {"type": "array", "minItems": 1, "maxItems": STEPS_MAX, "items": _step()},
        },
    }


def _about() -> dict[str, Any]:
    named = {"type": "object", "additionalProperties": _TEXT, "propertyNames": {"maxLength": NAME_MAX}}
    return {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}, named]}


def _option(option: Option) -> dict[str, Any]:
    name = "" if option.part == HARNESS else f" ({option.part}: {option.name})"
    form: dict[str, Any] = {"description": option.meaning + name}
    if option.default is not dataclasses.MISSING:
        form["default"] = option.default
    if option.choices:
        form["enum"] = list(option.choices)
    elif isinstance(option.default, bool):
        form["type"] = "boolean"
    elif option.field == "capture_bs":
        numbers = {"type": "integer", "minimum": 1, "maximum": BATCH_MAX}
        form |= {"type": "array", "minItems": 1, "uniqueItems": True, "items": numbers}
    else:
        low, high = option.bounds or (2, CONTEXT_MAX)
        form |= {"type": "integer", "minimum": low, "maximum": high}
    return form


def _step() -> dict[str, Any]:
    return _object(
        {
            "requests": {"type": "array", "maxItems": SLOTS_MAX, "items": _request()},
            "mirrored": _truth(True, "lengths and their sum come along on the host"),
            "layout": _number(0, LAYOUTS_MAX, "by which layout request slots own KV slots"),
            "hidden": {"enum": list(HIDDEN), "default": "", "description": "which hidden states the batch asks for"},
            "elsewhere": _number(0, SLOTS_MAX, "requests of the other rank, with dp_attention"),
            "wait": _number(0, WAIT_MAX, "iterations of the event loop since the step before, where steps arrive"),
        },
        required=["requests"],
    )


def _request() -> dict[str, Any]:
    return _object(
        {
            "slot": _number(1, SLOTS_MAX, "row of req_to_token"),
            "seq_len": _number(1, CONTEXT_MAX, "tokens already in its KV cache"),
            "data": _number(0, DATA_MAX, "seed of the contents of its tensors"),
            "accepted": _number(0, DATA_MAX, "drafts that the verify before accepted"),
            "greedy": _truth(False, "samples its best token, where drafts are drawn at random"),
            "further": _number(0, CONTEXT_MAX, "tokens asked for behind the first one, of a request that is served"),
        },
        required=["slot", "seq_len", "data"],
    )


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def _number(low: int, high: int, meaning: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": meaning}


def _truth(default: bool, meaning: str) -> dict[str, Any]:
    return {"type": "boolean", "default": default, "description": meaning}


def text() -> str:
    """The schema as docs/case.schema.json has it."""
    return json.dumps(schema(), indent=1) + "\n"


def table() -> str:
    """The fields of a setup in Markdown, as docs/cases.md has them."""
    rows = (OPTION[f.name] for f in dataclasses.fields(Setup))
    lines = [f"| `{row.field}` | {_origin(row)} | {_default(row)} | {row.meaning} | {_values(row)} |" for row in rows]
    return "\n".join(["| field | sglang | default | meaning | values |", "|---|---|---|---|---|", *lines]) + "\n"


def _origin(option: Option) -> str:
    return "" if option.part == HARNESS else f"{option.part}: `{option.name}`"


def _default(option: Option) -> str:
    return "" if option.default is dataclasses.MISSING else f"`{json.dumps(option.default)}`"


def _values(option: Option) -> str:
    if option.choices:
        return ", ".join(str(choice) for choice in option.choices if choice != "")
    return f"{option.bounds[0]} to {option.bounds[1]}" if option.bounds else ""
