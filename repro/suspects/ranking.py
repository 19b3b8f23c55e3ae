"""The functions that are likeliest to hold the mistake behind a failure, at most five.

A function that writes a wrong value is seldom the whole story: a row is wrong because nobody wrote it, a buffer because
it was made too small, a plan because of what it was handed. So each kind of failure has its own questions (rules.py),
asked of the functions that the run went through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from repro.cases.case import Case
from repro.suspects.changed_lines import Line
from repro.suspects.clues import Clues, Suspect
from repro.suspects.of_change import of_change
from repro.suspects.rules import ROOM, RULES
from repro.suspects.way import Function, way_of
from repro.traces.finding import Status, Verdict, first_first
from repro.traces.trace import Trace

MOST = 5
# Oracles of what a value comes from, in the order of a call. What is wrong there is looked at before its consequences.
_SOURCES = ("staged", "slot0_padding", "planned", "extents", "metadata_shape", "row_width", "tree_mask", "kv_indices")
_CONSEQUENCES = ("kv_indices", "kv_reads", "graph_equals_eager", "reference", "history", "logits", "text")


def suspects(
    case: Case,
    trace: Trace,
    failures: Sequence[Verdict],
    verdicts: Sequence[Verdict],
    read: Callable[[str], str],
    changed: Sequence[Line] = (),
) -> tuple[Suspect, ...]:
    """The likeliest first; () if the way of the run was not noted. failures: of which the first wrong value is asked
    after. verdicts: all of the run. read: the text of a file of sglang; OSError if it is not there. changed: the lines
    in which it differs from a base that passes, which come first."""
    way = way_of(trace)
    if way is None or not failures:
        return ()
    failure = first_first(failures)[0]
    clues = Clues(case=case, trace=trace, way=way, read=read)
    by_function: dict[Function, Suspect] = {}
    every = chain(of_change(clues, failure, changed), _each(clues, failure, verdicts))
    for suspect in islice(every, 1000):
        if suspect.function[1]:
            by_function.setdefault(suspect.function, suspect)
    return tuple(by_function.values())[:MOST]


def _each(clues: Clues, failure: Verdict, verdicts: Sequence[Verdict]) -> Iterator[Suspect]:
    for verdict in (*_sources(failure, verdicts)[:1], failure):
        if rule := RULES.get(verdict.oracle):
            yield from rule(clues, verdict)
    step = failure.cell.step if failure.cell else 0
    yield from clues.planners(clues.way.of_step(step, "graph", "verify"))


def _sources(failure: Verdict, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The failures of the same step that come before this one in a call, the first first."""
    if failure.oracle not in _CONSEQUENCES or failure.cell is None or ROOM.search(failure.where):
        return []
    before = _SOURCES[: _SOURCES.index(failure.oracle)] if failure.oracle in _SOURCES else _SOURCES
    of_step = [
        verdict
        for verdict in verdicts
        if verdict.status is Status.FAIL and verdict.oracle in before
        if verdict.cell is not None and verdict.cell.step == failure.cell.step
    ]
    return sorted(of_step, key=lambda verdict: before.index(verdict.oracle))


def listed(suspects: Sequence[Suspect]) -> Iterator[str]:
    """For a person."""
    if suspects:
        yield "likeliest to hold the mistake:"
    yield from (f"  {number}. {suspect}" for number, suspect in enumerate(suspects, start=1))
