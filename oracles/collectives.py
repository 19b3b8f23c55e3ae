"""Ranks call the same collectives, or one waits for ever: a forward calls with graphs what it calls without, a rank
without requests calls those of a busy one, and what a rank draws at random comes to its group from the first rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.cases.sharing import sharers_of
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "collectives"
DRAWN, GRAPHS, IDLE = "draws of one rank alone", "other calls by graph", "other calls without requests"
GRAPH, EAGER = "graph", "eager"
_SENT = "broadcast"
# A forward as it is recorded; and a call without its rows: kind, own, type and width.
Forward = dict[str, Any]
Form = tuple[Any, ...]


def judge(case: Case, trace: Trace) -> Verdict:
    """Compare forwards beside another group of ranks only where they pad alike, by the calls to all ranks."""
    arrays = Record(trace).path(-1, Recorded.COLLECTIVES)
    ways: dict[str, list[Forward]] = {name: json.loads(text.tobytes()) for name, text in arrays.items()}
    wrongs: list[Wrong] = []
    compared = 0
    if sharers_of(case.setup) > 1:
        drawing = [(n, each) for n, each in enumerate(ways.get(GRAPH, ())) if each["samples"] and not each["prefills"]]
        compared += len(drawn := [(n, each) for n, each in drawing if each["calls"]])
        wrongs += _drawn(drawn)
    if case.setup.dp_attention:
        pairs = list(_beside(ways.get(GRAPH, ())))
        wrongs += _apart(pairs, IDLE, "without requests", "with some")
    else:
        pairs = list(_alike(ways.get(GRAPH, ()), ways.get(EAGER, ())))
        wrongs += _apart(pairs, GRAPHS, "by graph", "without")
    compared += len(pairs)
    return conclude(ORACLE, wrongs, compared, nothing="no two forwards call alike", order=(GRAPHS, IDLE, DRAWN))


def _drawn(forwards: Sequence[tuple[int, Forward]]) -> Iterator[Wrong]:
    for number, forward in forwards:
        if not any(kind == _SENT and is_own for kind, is_own, _, _ in forward["calls"]):
            detail = f"Forward {number} samples for {forward['requests']} requests, and nothing of it is broadcast."
            cell = Cell(step=-1, buffer=_SENT, row=number, column=0, got="none", want="one")
            yield Wrong(where=DRAWN, detail=detail, cell=cell)


def _alike(graph: Sequence[Forward], eager: Sequence[Forward]) -> Iterator[tuple[int, list[Form], list[Form]]]:
    """The calls of the same forward on both ways, up to the first one that only one of them has."""
    for number, (replay, plain) in enumerate(zip(graph, eager, strict=False)):
        if any(replay[name] != plain[name] for name in ("requests", "prefills", "samples")):
            return
        yield number, _forms(replay), _forms(plain)


def _beside(forwards: Sequence[Forward]) -> Iterator[tuple[int, list[Form], list[Form]]]:
    """The calls of each forward without requests, and of one with some that pads as it does."""
    busy: dict[str, list[Form]] = {}
    for forward in forwards:
        if forward["requests"]:
            busy.setdefault(_padding(forward), _forms(forward, to_all=True))
    for number, forward in enumerate(forwards):
        if not forward["requests"] and (calls := busy.get(_padding(forward))) is not None:
            yield number, _forms(forward, to_all=True), calls


def _padding(forward: Forward) -> str:
    return f"{forward['prefills']} {forward['padding']}"


def _forms(forward: Forward, *, to_all: bool = False) -> list[Form]:
    """to_all: of the calls that go to ranks of other groups alone."""
    calls = forward["calls"]
    return [(kind, is_own, dtype, *shape[1:]) for kind, is_own, dtype, shape in calls if not (is_own and to_all)]


def _apart(pairs: Sequence[tuple[int, list[Form], list[Form]]], where: str, *ways: str) -> Iterator[Wrong]:
    """ways: of both lists of calls, in words."""
    for number, calls, expected in pairs:
        if calls != expected:
            places = (n for n, (call, like) in enumerate(zip(calls, expected, strict=False)) if call != like)
            at = next(places, min(len(calls), len(expected)))
            texts = [_text(forms[at]) if at < len(forms) else "no call" for forms in (calls, expected)]
            detail = f"Call {at} of forward {number} is {texts[0]} {ways[0]}, and {texts[1]} {ways[1]}."
            cell = Cell(step=-1, buffer="calls", row=number, column=at, got=texts[0], want=texts[1])
            yield Wrong(where=where, detail=detail, cell=cell)


def _text(form: Form) -> str:
    kind, is_own, dtype, *width = form
    return f"{kind} of {dtype} [n{''.join(f', {size}' for size in width)}] {'in the group' if is_own else 'to all'}"
