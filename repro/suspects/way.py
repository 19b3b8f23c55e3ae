"""The way of a failing run through sglang: which functions and lines ran, by what was under way, and who called them.
From a trace in which writes were noted (runners/sessions/passed.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from repro.traces.trace import PASSED, Trace

# A file of sglang and a function's qualified name in it; of a nested function, that of the one around it.
Function = tuple[str, str]
BUILD, CAPTURE = "-1 build", "-1 capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A function in a phase. lines: those that ran. last: the place of its last call among all calls. callers:
    functions, each with the line of the call."""

    function: Function
    lines: frozenset[int]
    last: int
    callers: tuple[tuple[Function, int], ...]

    @property
    def file(self) -> str:
        return self.function[0]

    @property
    def short(self) -> str:
        """The name without the class."""
        return self.function[1].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Way:
    """phases: the functions that ran, by step and path ("3 graph")."""

    phases: Mapping[str, tuple[Ran, ...]]

    def during(self, *names: str) -> Iterator[Ran]:
        """All that ran in these phases."""
        for name in names:
            yield from self.phases.get(name, ())

    def of_step(self, step: int, *paths: str) -> list[str]:
        """The phases of a step; of those of these paths, if it has any."""
        phases = [name for name in self.phases if name.split()[0] == str(step)]
        return [name for name in phases if name.partition(" ")[2] in paths] or phases


def way_of(trace: Trace) -> Way | None:
    """None if it was not noted."""
    text = trace.facts.get(PASSED)
    if not text:
        return None
    form = json.loads(text)
    functions = [(file, outer(name)) for file, name in form["functions"]]
    return Way({phase: tuple(_ran(functions, *row) for row in rows) for phase, rows in form["phases"].items()})


def _ran(functions: list[Function], number: int, last: int, lines: list[int], callers: list[Any]) -> Ran:
    calls = tuple((functions[caller], line) for caller, line in callers)
    return Ran(function=functions[number], lines=frozenset(lines), last=last, callers=calls)


def outer(name: str) -> str:
    """A function's name with its class; of what is defined inside of it, the function's."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0].lstrip("_")[:1].isupper() else 1])
