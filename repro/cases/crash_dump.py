"""Requests and settings of a server, read from what sglang's --crash-dump-folder holds: a pickle, of which nothing is
imported and no code runs."""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cases.batches import BadEvidence, Batch, Row
from repro.cases.bounded_file import read_bytes
from repro.cases.options import SLOTS_MAX

BYTES_MAX = 1 << 26
# Packages whose objects become inert records: what sglang puts into requests and settings.
_RECORDED = ("sglang", "msgspec", "numpy", "torch", "transformers")
_CONTAINERS = {("collections", each.__name__): each for each in (deque, OrderedDict, defaultdict)} | {
    ("builtins", each.__name__): each for each in (set, frozenset)
}
_TOKENS_MAX = 10**7
# Letters of a token of English, where only a prompt's text is known.
_LETTERS = 4
_LEFT_OUT = object()


class Record:
    """An object of a dump: what it was made of, and nothing that it could do. Mutable while it is read."""

    def __new__(cls, *arguments: Any, **named: Any) -> Record:
        record = super().__new__(cls)
        record.arguments, record.values = arguments, dict(named)
        return record

    arguments: tuple[Any, ...]
    values: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.values.update(part)


# The one of C makes room for as many objects as a file says that it has.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        if module.partition(".")[0] not in _RECORDED:
            raise BadEvidence(f"it asks for {module}.{name}, which no crash dump has; nothing of it was run")
        return type(name.rpartition(".")[2], (Record,), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request of a dump. prompt, output: tokens. guessed: the prompt's tokens are made out of its letters. start,
    end: seconds. ended: False if it was under way. accepted: drafts a verify, on average; None: unsaid."""

    prompt: int
    output: int
    start: float
    end: float
    ended: bool
    guessed: bool = False
    accepted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """settings: a server's arguments, those that are numbers, words or lists of them. command: its launch command."""

    requests: tuple[Served, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


def newest(place: Path) -> Path:
    """The newest dump in this folder, whose names are times; the file itself if it is one. BadEvidence, OSError."""
    if not place.is_dir():
        return place
    dumps = sorted(place.rglob("*.pkl"), key=lambda path: (path.name.startswith("crash_dump"), path.name))
    if not dumps:
        raise BadEvidence("no file *.pkl in this folder or below; sglang writes crash_dump_TIME.pkl")
    return dumps[-1]


def read(path: Path) -> Dump:
    """The dump in this file. BadEvidence if it is none, cut, or holds what sglang does not write; OSError."""
    content = read_bytes(path, BYTES_MAX)
    try:
        form = _Reader(io.BytesIO(content)).load()
    except BadEvidence:
        raise
    except Exception as error:  # a pickle that is cut or damaged raises whatever its next byte means
        raise BadEvidence("no pickle, or cut before its end; copy it again from the server") from error
    if not isinstance(form, dict) or not isinstance(form.get("requests"), list):
        raise BadEvidence("a pickle without the key requests, which sglang's dumps have")
    requests = tuple(_served(number, entry) for number, entry in enumerate(form["requests"]))
    if not requests:
        raise BadEvidence("a dump of no request; --dump-requests-folder keeps those of quiet times")
    command = form.get("launch_command")
    return Dump(
        requests=requests,
        settings=_settings(form.get("resolved_config")) or _settings(form.get("server_args")),
        command=command if isinstance(command, str) else "",
    )


def _settings(value: Any) -> dict[str, Any]:
    """The simple entries of a dict or a record, by its state or the first dict that it was made of."""
    if isinstance(value, Record):
        made_of = [part for part in value.arguments if isinstance(part, dict)]
        value = value.values or next(iter(made_of), {})
    if not isinstance(value, dict):
        return {}
    plain = {name: _plain(part) for name, part in value.items() if isinstance(name, str)}
    return {name: part for name, part in plain.items() if part is not _LEFT_OUT}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):  # a value of an enumeration
        value = value.arguments[0] if len(value.arguments) == 1 else _LEFT_OUT
    if isinstance(value, list | tuple) and all(isinstance(part, int) for part in value):
        return list(value)
    return value if isinstance(value, bool | int | float | str) else _LEFT_OUT


def _served(number: int, entry: Any) -> Served:
    """A request: sglang's input, what was answered last, and when it came and went."""
    try:
        inputs, answer, start, end = entry
        assert isinstance(inputs, Record) and isinstance(answer, dict)
        start, end = float(start), float(end)
        assert math.isfinite(start) and math.isfinite(end)
    except (AssertionError, TypeError, ValueError) as error:
        raise BadEvidence(f"request {number} is no input, answer, start and end, as sglang writes them") from error
    about = answer.get("meta_info")
    about = about if isinstance(about, dict) else {}
    ids, text = inputs.values.get("input_ids"), inputs.values.get("text")
    prompt = _count(about.get("prompt_tokens")) or _length(ids)
    length = about.get("spec_accept_length")
    accepted = max(0, round(length) - 1) if isinstance(length, int | float) and math.isfinite(length) else None
    return Served(
        prompt=prompt or max(1, _length(text) // _LETTERS),
        guessed=not prompt,
        output=_count(about.get("completion_tokens")) or _length(answer.get("output_ids")),
        start=start,
        end=max(start, end),
        ended=bool(about.get("finish_reason")),
        accepted=accepted,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value <= _TOKENS_MAX else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple | str) else 0


def batches(requests: Sequence[Served], most: int = 0) -> tuple[Batch, ...]:
    """A batch whenever a request came or went, with those that ran then, the earliest `most` of them, and lengths grown
    evenly from start to end; the last one is that of the crash. most: 0 for as many as a case has slots."""
    last = max(request.end for request in requests)
    times = sorted({time for r in requests for time in (r.start, *(() if r.ended else (last,)), *_before(r))})
    return tuple(_batches(requests, times, most or SLOTS_MAX, last))


def _before(request: Served) -> tuple[float, ...]:
    """The time just before a request's end, at which it is as long as it gets."""
    return (math.nextafter(request.end, request.start),) if request.ended and request.end > request.start else ()


def _batches(requests: Sequence[Served], times: Sequence[float], most: int, last: float) -> Iterator[Batch]:
    order = sorted(range(len(requests)), key=lambda number: (requests[number].start, number))
    for time in times:
        running = [
            number
            for number in order
            if requests[number].start <= time and (time < requests[number].end or not requests[number].ended)
        ]
        rows = tuple(_row(number, requests[number], time, last) for number in running[:most])
        if rows:
            yield Batch(rows=rows, place=f"the batch at {time:.3f} s")


def _row(number: int, request: Served, time: float, last: float) -> Row:
    span = (request.end if request.ended else last) - request.start
    grown = round(request.output * (time - request.start) / span) if span else request.output
    return Row(request=str(number), length=request.prompt + grown, accepted=request.accepted)
