"""Excerpts of both paths, side by side: the right rows, few enough to read, of whatever a trace holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from repro.traces.campaign import Campaign
from repro.traces.excerpt import COLUMNS_MAX, EXCERPTS_MAX, ROWS_MAX, excerpts
from repro.traces.finding import Cell
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from tests.builders.sample_record import BUGGY, campaign, stale_found


def trace(*seen: tuple[int, str, str, Array]) -> Trace:
    return Trace(
        ended=End(how=Termination.DONE),
        seen=tuple(RecordedArray(step=step, path=path, name=name, array=array) for step, path, name, array in seen),
    )


def cell(buffer: str, row: int) -> Cell:
    return Cell(step=1, buffer=buffer, row=row, column=0, got="2", want="0")


def test_wrong_buffer_comes_first_beside_what_belongs_there() -> None:
    tokens = np.array([[5, 6]])
    seen = trace(
        (1, "launch", "req_pool_indices", np.array([1, 2])),
        (1, "input", "req_pool_indices", np.array([1])),
        (-1, "neutral", "req_pool_indices", np.array(0)),
        (1, "graph", "tokens", tokens),
        (1, "eager", "tokens", tokens),
    )
    padded, output = excerpts(seen, cell("req_pool_indices", 1))
    assert (padded.name, padded.row, padded.graph, padded.eager) == ("req_pool_indices", 1, ("2",), ("0",))
    assert (output.name, output.row, output.graph, output.eager) == ("tokens", 0, ("5", "6"), ("5", "6"))
    # A real row is to hold what the caller gave.
    assert excerpts(seen, cell("req_pool_indices", 0))[0].eager == ("1",)


def test_rows_that_differ_come_before_those_that_do_not() -> None:
    graph, eager = np.zeros((8, 3)), np.zeros((8, 3))
    graph[[4, 6], 1] = 1.25
    rows = excerpts(trace((0, "graph", "scores", graph), (0, "eager", "scores", eager)), None)
    assert [row.row for row in rows] == [4, 6, 0]
    assert len(rows) == ROWS_MAX
    assert rows[0].graph == ("0", "1.25", "0")


def test_of_a_wide_row_the_part_around_the_first_difference_is_shown() -> None:
    graph, eager = np.arange(500).reshape(1, 500), np.arange(500).reshape(1, 500)
    graph[0, 300] = -1
    [row] = excerpts(trace((0, "graph", "x", graph), (0, "eager", "x", eager)), None)
    assert row.width == 500 and len(row.graph) == COLUMNS_MAX
    assert row.graph[300 - row.column] == "-1" and row.eager[300 - row.column] == "300"


def test_what_cannot_be_compared_is_left_out() -> None:
    seen = trace(
        (0, "graph", "a", np.zeros((2, 3))),
        (0, "eager", "a", np.zeros((2, 4))),
        (0, "graph", "kv_slots", np.arange(4)),
        (0, "eager", "kv_slots", np.arange(4)),
        (0, "graph", "alone", np.zeros(3)),
        (0, "graph", "scalar", np.array(3)),
        (0, "eager", "scalar", np.array(3)),
        (0, "graph", "empty", np.zeros((0, 3))),
        (0, "eager", "empty", np.zeros((0, 3))),
    )
    assert excerpts(seen, None) == ()
    assert excerpts(seen, cell("kv_indices guard", 900)) == ()
    assert excerpts(trace(), None) == ()


def test_a_wrong_row_of_which_nothing_says_what_it_should_hold_is_left_out() -> None:
    """No input of that name and no neutral value, or an input of another width."""
    launched = (1, "launch", "hidden_states", np.ones((2, 3)))
    assert excerpts(trace(launched), cell("hidden_states", 1)) == ()
    for width, shown in ((4, 0), (3, 1)):
        place = (1, "input", "hidden_states", np.zeros((2, width)))
        assert len(excerpts(trace(launched, place), cell("hidden_states", 1))) == shown


def test_there_are_never_many() -> None:
    arrays = [(0, path, f"output {n}", np.arange(6).reshape(6, 1)) for n in range(30) for path in ("graph", "eager")]
    assert len(excerpts(trace(*arrays), None)) == EXCERPTS_MAX


def test_a_finding_keeps_them_in_its_record() -> None:
    tokens = np.array([[5, 6]])
    kept = excerpts(trace((0, "graph", "tokens", tokens), (0, "eager", "tokens", tokens)), None)
    whole = campaign(BUGGY, (replace(stale_found(), excerpts=kept),))
    assert Campaign.from_json(whole.to_json()) == whole
    # One that was written before there were any is still read.
    form = whole.to_json()
    del form["findings"][0]["excerpts"]
    assert Campaign.from_json(form).findings[0].excerpts == ()
