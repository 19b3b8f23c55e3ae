"""The seed file: a case and a few words about it, as JSON with one request a line.

Data only: nothing in it is executed. Whatever does not mean exactly one valid case is refused, by part and value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repro.cases import json_parts
from repro.cases.atomic_file import write_text
from repro.cases.bounded_file import read_text
from repro.cases.case import Case, Request, Step, problems
from repro.cases.case_form import FLAT, NESTED, case_of, case_of_form
from repro.cases.case_form import case_to_json as case_to_json
from repro.cases.key import NAME_MAX as NAME_MAX
from repro.cases.options import OPTIONS

# Adding a field with a default keeps the number. Any other change of meaning, a changed default too, raises it.
FORMAT = NESTED
FORMATS_KNOWN = (FLAT, NESTED)
# The number that digests have begun with since the first seed.
_DIGESTED = 1

# A thousand requests take 60 kB; a larger file is not a seed, and refusing it must cost nothing.
BYTES_MAX = 1 << 20
TEXT_MAX = 1000
LATER = frozenset(option.field for option in OPTIONS if option.later)
_PROBLEMS_SHOWN = 8

AboutValue = str | tuple[str, ...] | Mapping[str, str]


class BadSeed(ValueError):
    """This is no seed. The text, one line, names the part and the value that were refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A case and what is said about it: where it was found, what is expected of which releases. `about` holds
    texts, lists of texts and one level of named texts; it never changes what the case means."""

    about: Mapping[str, AboutValue] = field(default_factory=dict)
    case: Case


def digest(case: Case) -> str:
    """The identity of a case, 12 hex digits. Fields at their default are left out, so that a field added to
    Setup later, with a default, leaves every digest as it was."""
    setup = {
        f.name: getattr(case.setup, f.name)
        for f in dataclasses.fields(case.setup)
        if getattr(case.setup, f.name) != f.default
    }
    steps = [
        [*(tuple(_request_values(r).values()) for r in step.requests), *filter(None, [_step_options(step)])]
        for step in case.steps
    ]
    text = json.dumps([_DIGESTED, setup, steps], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def options(case: Case) -> list[str]:
    """The options that few cases have, by the names of the fields; "idle" where a step has no requests."""
    fields = dataclasses.fields(case.setup)
    names = [f.name for f in fields if f.name in LATER and getattr(case.setup, f.name) != f.default]
    names += [name for step in case.steps for name in (*_step_options(step), *([] if step.requests else ["idle"]))]
    return list(dict.fromkeys(names))


def case_from_json(value: object) -> Case:
    """The case that case_to_json of this version or an older one wrote. BadSeed if a part or type is wrong; whether the
    case is valid is left to problems()."""
    try:
        return case_of_form(json_parts.as_fields("case", value, required={"setup", "steps"}))
    except json_parts.Refused as error:
        raise BadSeed(str(error)) from error


def dumps(seed: Seed) -> str:
    """The text of a seed file. BadSeed if loads would refuse it."""
    try:
        about = _about(dict(seed.about))
    except json_parts.Refused as error:
        raise BadSeed(str(error)) from error
    _need_valid(seed.case)
    text = "\n".join(_lines(about, case_to_json(seed.case))) + "\n"
    _need_size(len(text.encode()))
    return text


def loads(text: str) -> Seed:
    """The seed that this text means. BadSeed if it is not exactly one valid case."""
    _need_size(len(text.encode(errors="surrogatepass")))
    try:
        value = json_parts.as_object("seed", json_parts.parse(text))
        number = json_parts.as_integer("format", value.get("format", FORMAT))
        if number not in FORMATS_KNOWN:
            known = " and ".join(map(str, FORMATS_KNOWN))
            raise BadSeed(f"format {number} is unknown: this version reads formats {known}")
        fields = json_parts.as_fields("seed", value, required={"format", "setup", "steps"}, optional={"about"})
        seed = Seed(about=_about(fields.get("about", {})), case=case_of(fields, number))
    except json_parts.Refused as error:
        raise BadSeed(str(error)) from error
    _need_valid(seed.case)
    return seed


def read(path: Path) -> Seed:
    """The seed in this file. BadSeed, naming the file, if it cannot be read or is not a seed."""
    try:
        return loads(read_text(path, BYTES_MAX))
    except OSError as error:
        raise BadSeed(f"{path}: {error.strerror or error}") from error
    except BadSeed as error:
        raise BadSeed(f"{path}: {error}") from error


def write(path: Path, seed: Seed) -> None:
    """Put the seed at this path, whole or not at all. BadSeed if loads would refuse it, OSError if the disk does."""
    write_text(path, dumps(seed))


def _need_size(size: int) -> None:
    if size > BYTES_MAX:
        raise BadSeed(f"{size} bytes are too many for a seed: the limit is {BYTES_MAX}")


def _need_valid(case: Case) -> None:
    bad = problems(case)
    if bad:
        lines = [json_parts.cut(line, 200) for line in bad[:_PROBLEMS_SHOWN]]
        if len(bad) > len(lines):
            lines.append(f"and {len(bad) - len(lines)} more")
        raise BadSeed("not a valid case: " + "; ".join(lines))


# Reading


def _about(value: object) -> dict[str, AboutValue]:
    fields = json_parts.as_object("about", value)
    return {
        json_parts.as_text("about", key, NAME_MAX): _about_value(f"about.{key}", part) for key, part in fields.items()
    }


def _about_value(part: str, value: object) -> AboutValue:
    if isinstance(value, list | tuple):
        return tuple(json_parts.as_text(f"{part}[{n}]", item, TEXT_MAX) for n, item in enumerate(value))
    if isinstance(value, Mapping):
        return {
            json_parts.as_text(part, key, NAME_MAX): json_parts.as_text(f"{part}.{key}", item, TEXT_MAX)
            for key, item in value.items()
        }
    return json_parts.as_text(part, value, TEXT_MAX)


# Writing


def _request_values(request: Request) -> dict[str, int]:
    form = {"slot": request.slot, "seq_len": request.seq_len, "data": request.data}
    return (
        form
        | ({"accepted": request.accepted} if request.accepted else {})
        | ({"greedy": True} if request.greedy else {})
        | ({"further": request.further} if request.further else {})
    )


def _step_options(step: Step) -> dict[str, bool | int | str]:
    """The options that few steps have."""
    fields = (field for field in dataclasses.fields(step) if field.name != "requests")
    return {f.name: getattr(step, f.name) for f in fields if getattr(step, f.name) != f.default}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _member(value: object) -> str:
    """A value of the setup: one key a line in the parts of a server."""
    if not isinstance(value, Mapping):
        return _text(value)
    return "{\n" + ",\n".join(f"   {_text(key)}: {_text(item)}" for key, item in value.items()) + "\n  }"


def _lines(about: Mapping[str, AboutValue], case: Mapping[str, typing.Any]) -> Iterator[str]:
    yield "{"
    yield f' "format": {FORMAT},'
    yield ' "about": {'
    yield from _separated(f"  {_text(key)}: {_text(value)}" for key, value in about.items())
    yield " },"
    yield ' "setup": {'
    yield from _separated(f"  {_text(key)}: {_member(value)}" for key, value in case["setup"].items())
    yield " },"
    yield ' "steps": ['
    for number, step in enumerate(case["steps"]):
        yield '  {"requests": ['
        yield from _separated(f"   {_text(request)}" for request in step["requests"])
        options = "".join(f", {_text(name)}: {_text(value)}" for name, value in step.items() if name != "requests")
        yield f"  ]{options}}}" + ("" if number + 1 == len(case["steps"]) else ",")
    yield " ]"
    yield "}"


def _separated(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with a comma behind each but the last."""
    before = None
    for line in lines:
        if before is not None:
            yield before + ","
        before = line
    if before is not None:
        yield before
