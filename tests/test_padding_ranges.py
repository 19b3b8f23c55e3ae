"""Padded rows that a release leaves as they are: the oracle holds them to what a real row may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import slot0_padding
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Status
from repro.traces.trace import Array, RecordedArray, Trace
from tests.builders.sound_trace import CASE, PADDED, RAW, SETUP, SOUND
from tests.builders.toy_traces import changed

RANGES = {(name, limits) for facts in RUNNER_FACTS.values() for name, limits in facts.padded(SETUP).items()}
# A buffer of the toy's with two columns.
BUFFER = "hidden_states"


def left_alone(low: float, high: float, *values: float) -> Trace:
    """The sound trace, but the padded row of a buffer is not reset: it holds these values."""

    def stale(launched: Array) -> Array:
        launched = launched.astype(np.float64)
        launched[RAW].reshape(-1)[: len(values)] = values
        launched[RAW].reshape(-1)[len(values) :] = low
        return launched

    trace = changed(changed(SOUND, PADDED, "launch", BUFFER, stale), PADDED, "neutral", BUFFER, lambda _: None)
    limits = RecordedArray(step=PADDED, path="range", name=BUFFER, array=np.array([low, high]))
    return replace(trace, seen=(*trace.seen, limits))


def test_some_runner_leaves_rows_as_they_are() -> None:
    assert {name for name, _ in RANGES} >= {"input_ids", "positions", "hidden_states", "num_correct_drafts"}


@pytest.mark.parametrize(("name", "limits"), sorted(RANGES))
def test_the_limits_themselves(name: str, limits: tuple[float, float]) -> None:
    """The lower limit is inside, the upper one is not, nor is what is below or no number."""
    low, high = limits
    assert low < high
    inside = slot0_padding.judge(CASE, left_alone(low, high, low, np.nextafter(high, low)))
    assert [verdict.status for verdict in inside] == [Status.PASS], name
    for wrong in (high, np.nextafter(low, -np.inf), np.nan):
        [verdict] = slot0_padding.judge(CASE, left_alone(low, high, low, wrong))
        assert (verdict.status, verdict.where) == (Status.FAIL, f"padded rows of {BUFFER}")
        assert verdict.cell is not None
        assert (verdict.cell.row, verdict.cell.column) == (RAW, 1)


def test_a_batch_without_lengths_on_the_host_leaves_their_buffer_alone() -> None:
    arrays = {"launch": np.array([20, 4, 12, 77]), "neutral": np.array([1])}
    more = tuple(
        RecordedArray(step=PADDED, path=path, name="seq_lens_cpu", array=array) for path, array in arrays.items()
    )
    stale = replace(SOUND, seen=SOUND.seen + more)
    assert [verdict.where for verdict in slot0_padding.judge(CASE, stale)] == ["padded rows of seq_lens_cpu"]
    # Nothing reads it where the batch has no such field.
    unread = changed(stale, PADDED, "before", "seq_lens_cpu", lambda _: None)
    assert [verdict.status for verdict in slot0_padding.judge(CASE, unread)] == [Status.PASS]
