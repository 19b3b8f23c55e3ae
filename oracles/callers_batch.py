"""The caller's batch is unchanged after the call. sglang's eager path advances some fields (positions); a change that
both paths make is no failure."""

from __future__ import annotations

from collections.abc import Mapping

from oracles.trace_index import Record, Wrong, conclude_each, equal, first_difference
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "callers_batch"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        before, after = record.path(step, Recorded.BEFORE), record.path(step, Recorded.AFTER_GRAPH)
        eager = record.path(step, Recorded.AFTER_EAGER)
        if not after:
            continue
        for name in before:
            cell, comparable = _judge_field(step, name, before[name], after, eager)
            compared += comparable
            if cell:
                detail = (
                    f"After the graph path of step {step} the caller's {name} is {cell.got}, it was {cell.want} before."
                )
                wrongs.append(Wrong(where=name, detail=detail, cell=cell))
    nothing = "the caller's batch was not recorded after a graph path"
    return conclude_each(ORACLE, wrongs, compared, label="the caller's", nothing=nothing)


def _judge_field(
    step: int, name: str, before: Array, after: Mapping[str, Array], eager: Mapping[str, Array]
) -> tuple[Cell | None, bool]:
    """The wrong cell of a field, if any, and whether the field could be compared."""
    if name not in after:
        # A run that broke off may have lost the field on the way here; one that went on to eager did not.
        gone = Cell(step=step, buffer=name, row=-1, column=-1, got="gone", want=f"shape {before.shape}")
        return (gone, True) if name in eager else (None, False)
    if equal(after[name], before) or (name in eager and equal(after[name], eager[name])):
        return None, True
    if not eager:
        return None, False
    return first_difference(step, name, after[name], before), True
