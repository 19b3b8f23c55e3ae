"""Messages to a node and back: the lines that a runner runs, and a part of the mutants with what is needed
of these lines to try them, both as JSON. Setups go by their place in the runner's plan, which is the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.mutation.mutant import Mutant
from fuzz.mutation.scope import PREFIXES, Lines, Places, Ran, lines_of, places_of, traced_cases
from fuzz.mutation.sites import mutants
from fuzz.mutation.trial import Run
from repro.cases.case import Case, Setup

Plans = Mapping[str, Sequence[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The lines that a runner runs with one backend. setups: lines of each that came to any. ending: how the first case
    of the last setup ended."""

    setups: Mapping[Setup, Lines]
    places: Places
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A mutant, and the runners that try it: first the one that it was drawn for."""

    mutant: Mutant
    runners: tuple[str, ...]


def traced(setup: Setup, cases: Sequence[Case], run: Run) -> Traced:
    """The lines that a setup's cases run, each with lines noted."""
    traces = [run(case, {"trace": list(PREFIXES)}) for case in cases]
    lines = lines_of(traces)
    return Traced(setups={setup: lines} if lines else {}, places=places_of(traces), ending=traces[0].ended.what)


def joined(parts: Sequence[Traced]) -> Traced:
    """The lines of several setups of a runner."""
    setups: dict[Setup, Lines] = {}
    places: dict[str, frozenset[tuple[int, int, int, int]]] = {}
    for part in parts:
        setups |= part.setups
        for file, more in part.places.items():
            places[file] = places.get(file, frozenset()) | more
    return Traced(setups=setups, places=places, ending=parts[-1].ending if parts else "no cases")


def to_text(of: Traced, plan: Sequence[Case]) -> str:
    """The JSON that from_json() takes with the same plan."""
    places = {file: sorted(spans) for file, spans in of.places.items()}
    form = {"setups": _setups(of.setups, plan), "places": places, "ending": of.ending}
    return json.dumps(form, separators=(",", ":"))


def from_json(form: Mapping[str, Any], plan: Sequence[Case]) -> Traced:
    """The reverse of to_text()."""
    places = {file: frozenset((a, b, c, d) for a, b, c, d in spans) for file, spans in form["places"].items()}
    return Traced(setups=_by_setup(form["setups"], plan), places=places, ending=form["ending"])


def part(drawn: Iterable[Drawn], plans: Plans, ran: Ran) -> str:
    """These mutants, with the lines of their functions that each setup runs."""
    drawn = tuple(drawn)
    inside: dict[str, set[int]] = {}
    for mutant in (entry.mutant for entry in drawn):
        numbers = {*range(mutant.first_line, mutant.last_line + 1), *range(mutant.lines[0], mutant.lines[1] + 1)}
        inside.setdefault(mutant.file, set()).update(numbers)
    names = dict.fromkeys(name for entry in drawn for name in entry.runners)
    needed = {
        name: {
            setup: {file: lines & inside[file] for file, lines in by_file.items() if file in inside}
            for setup, by_file in ran[name].items()
        }
        for name in names
    }
    form = {
        "mutants": [[entry.mutant.file, entry.mutant.id, *entry.runners] for entry in drawn],
        "ran": {name: _setups(by_setup, plans[name]) for name, by_setup in needed.items()},
    }
    return json.dumps(form, separators=(",", ":"))


def of_part(text: str, plans: Plans, source: Callable[[str], str]) -> tuple[list[Drawn], Ran]:
    """The mutants of a part, and the lines."""
    form = json.loads(text)
    files = dict.fromkeys(file for file, *_ in form["mutants"])
    known = {mutant.id: mutant for file in files for mutant in mutants(file, source(file))}
    drawn = [Drawn(mutant=known[name], runners=tuple(runners)) for _, name, *runners in form["mutants"]]
    return drawn, {name: _by_setup(lines, plans[name]) for name, lines in form["ran"].items()}


def _setups(by_setup: Mapping[Setup, Lines], plan: Sequence[Case]) -> list[dict[str, list[int]] | None]:
    """In the order of the plan; None for one of which nothing is known."""
    return [
        {file: sorted(lines) for file, lines in by_setup[setup].items()} if setup in by_setup else None
        for setup in traced_cases(plan)
    ]


def _by_setup(forms: Sequence[Mapping[str, Sequence[int]] | None], plan: Sequence[Case]) -> dict[Setup, Lines]:
    return {
        setup: {file: frozenset(lines) for file, lines in form.items()}
        for setup, form in zip(traced_cases(plan), forms, strict=True)
        if form is not None
    }
