"""Observations of one case on the toy, and traces changed as another engine would show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from oracles.catalogue import OF_SOME_ENGINES, judge_all, overall
from oracles.tolerance import across_engines
from repro.cases.case import Case
from repro.fidelity.compare import Agreement, Limit
from repro.fidelity.observation import Observation, observe
from repro.traces.trace import RecordedArray, Trace
from tests.builders.toy_traces import changed, toy_trace
from tests.repro.test_repro_main import CASE

TRACE = toy_trace(CASE)


def agreement_of(limit: Limit = across_engines) -> Agreement:
    """A count that has begun with nothing."""
    return Agreement(names=("here/toy", "there/toy"), limit=limit, overall=overall, of_some=OF_SOME_ENGINES)


def compared(left: Trace, other: Trace) -> Agreement:
    agreement = agreement_of()
    agreement.add(seen(left), seen(other))
    return agreement


def seen(trace: Trace, case: Case = CASE) -> Observation:
    verdicts = judge_all(case, trace)
    return observe(case, trace, verdicts, overall(verdicts))


def with_variant(trace: Trace, step: int, name: str, change: Callable[[Any], Any]) -> Trace:
    """The trace with an eager pass in which noise has changed one output."""
    nudged = [
        replace(array, path="eager_nudged_up") for array in trace.seen if (array.step, array.path) == (step, "eager")
    ]
    return changed(replace(trace, seen=(*trace.seen, *nudged)), step, "eager_nudged_up", name, change)


def with_scores(trace: Trace, step: int = 0, change: Callable[[Any], Any] | None = None) -> Trace:
    """The trace with one more output, of floats: [requests, 8], changed in this step of graph and eager."""
    for number, batch in enumerate(CASE.steps):
        scores = np.linspace(0, 1, 8 * len(batch.requests), dtype=np.float32).reshape(-1, 8)
        array = change(scores) if change and number == step else scores
        more = [RecordedArray(step=number, path=path, name="scores", array=array) for path in ("graph", "eager")]
        trace = replace(trace, seen=(*trace.seen, *more))
    return trace


def slot_of(step: int, row: int) -> tuple[int, int]:
    """The place in kv_rows of a KV slot that this request's drafts wrote, and the slot."""
    slots_given, slots = TRACE.get(step, "input", "out_cache_loc"), TRACE.get(step, "eager", "kv_slots")
    assert slots_given is not None and slots is not None
    mine = set(slots_given[row].tolist())
    return next((place, slot) for place, slot in enumerate(slots.tolist()) if slot in mine)


def without_rows(trace: Trace) -> Trace:
    """The trace of a worker that was not asked for all rows."""
    return replace(trace, seen=tuple(array for array in trace.seen if array.name != "kv_rows"))
