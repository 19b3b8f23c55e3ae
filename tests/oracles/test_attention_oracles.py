"""kv_indices and metadata_shape on traces that are changed by hand: whose slots attention reads, and how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from oracles import kv_indices, metadata_shape, row_width
from oracles.catalogue import asked
from repro.cases.case import Case
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from tests.builders.sound_trace import BS, CASE, FAIL, PADDED, PASS, RAW, SETUP, SOUND, UNKNOWN, told
from tests.builders.toy_traces import changed, put, toy_trace


def test_kv_indices_says_which_row_and_branch() -> None:
    # Draft step 1 of the padded step: row 0 has slot 5, seq_len 20; its branch 1 starts at entry 22.
    trace = changed(SOUND, PADDED, "metadata", "kv_indices", put((1, 22 + 3), 9999))
    verdict = kv_indices.judge(CASE, trace)
    assert told(verdict) == (FAIL, "segment of a real row")
    assert "entry 3 of row 0 branch 1" in verdict.detail
    assert "outside the pool" in verdict.detail
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column, verdict.cell.got) == (1, 25, "9999")


def test_kv_indices_knows_where_padding_begins() -> None:
    used = 2 * (20 + 4 + 12) + 6 * 1  # draft step 0 of three requests: prefixes of both branches, one draft each
    first = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used), 3))
    assert told(kv_indices.judge(CASE, first)) == (FAIL, "segment of a padded row")
    last = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used - 1), 3))
    assert told(kv_indices.judge(CASE, last)) == (FAIL, "segment of a real row")
    unused = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used + 2 * 2), 3))
    assert kv_indices.judge(CASE, unused).status is PASS


def test_kv_indices_of_draft_steps_that_are_not_run_do_not_matter() -> None:
    trace = changed(SOUND, PADDED, "metadata", "kv_indices", put(SETUP.num_steps - 1, 3))
    assert kv_indices.judge(CASE, trace).status is PASS


def test_a_narrow_row_is_told_before_its_consequences() -> None:
    trace = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :30] * 0)
    trace = changed(trace, 0, "guard", "kv_indices", put(20, 1))
    verdict = kv_indices.judge(CASE, trace)
    assert told(verdict) == (FAIL, "kv_indices row too narrow")
    assert "needs 100 entries of a kv_indices row that has 30" in verdict.detail


@pytest.mark.parametrize("name", ["kv_indices", "kv_indptr"])
def test_guard_bands(name: str) -> None:
    verdict = kv_indices.judge(CASE, changed(SOUND, 0, "guard", name, put(-1, 1)))
    assert told(verdict) == (FAIL, f"guard band of {name}")
    assert verdict.cell is not None
    assert (verdict.cell.column, verdict.cell.got, verdict.cell.want) == (31, "1", "-7777")


def test_kv_indices_alone_or_guards_alone_are_enough_to_compare() -> None:
    for path in ("metadata", "guard"):
        seen = tuple(array for array in SOUND.seen if array.path != path)
        assert kv_indices.judge(CASE, replace(SOUND, seen=seen)).status is PASS
    seen = tuple(array for array in SOUND.seen if array.path not in ("metadata", "guard"))
    assert kv_indices.judge(CASE, replace(SOUND, seen=seen)).status is UNKNOWN


def test_kv_indices_with_branches_on_pages_of_their_own() -> None:
    setup = replace(SETUP, page_size=4, topk=3, num_draft_tokens=8)
    case = Case(setup=setup, steps=CASE.steps)
    trace = toy_trace(case)
    assert kv_indices.judge(case, trace).status is PASS
    # Laid out as one-token pages would be, the very same lengths are wrong.
    assert kv_indices.judge(Case(setup=replace(setup, page_size=1), steps=CASE.steps), trace).status is FAIL


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (put((0, 0), 1), "kv_indptr does not start at 0"),
        (put((1, 2), 0), "length of a real row"),
        (put((1, 2 * BS), 400), "length of a padded row"),
        (put((0, 2 * RAW), 5), "length of a real row"),
        (lambda array: array[:, : 2 * BS], "kv_indptr has fewer rows than the query"),
    ],
)
def test_metadata_shape(change: Callable[[Array], Array], where: str) -> None:
    verdict = metadata_shape.judge(CASE, changed(SOUND, PADDED, "metadata", "kv_indptr", change))
    assert told(verdict) == (FAIL, where)
    assert verdict.cell is not None
    assert verdict.cell.buffer == "kv_indptr"


def test_a_padded_row_may_be_as_long_as_either_neutral_value_says() -> None:
    # The toy writes row starts from positions (0) as sglang does; from seq_lens (1) is as harmless, 2 more is not.
    for longer, want in ((0, PASS), (1, PASS), (2, FAIL)):
        grow = np.zeros(2 * BS + 1, dtype=np.int64)
        grow[2 * RAW + 1 :] = longer * np.arange(1, 2 * (BS - RAW) + 1)
        trace = changed(SOUND, PADDED, "metadata", "kv_indptr", partial(np.add, grow))
        assert metadata_shape.judge(CASE, trace).status is want


def test_the_last_row_may_not_end_behind_its_kv_indices_row() -> None:
    trace = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :99])
    verdict = metadata_shape.judge(CASE, trace)
    assert told(verdict) == (FAIL, "last entry past the end of a kv_indices row")
    exact = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :108])
    assert metadata_shape.judge(CASE, exact).status is PASS


def test_a_row_of_a_page_table_that_is_too_narrow_fails() -> None:
    def trace(rows: list[list[int]]) -> Trace:
        seen = RecordedArray(step=1, path="metadata", name="page_rows", array=np.array(rows))
        return Trace(ended=End(how=Termination.DONE), seen=(seen,))

    case = replace(CASE, setup=replace(SETUP, runner="draft", backend="fa3"))
    fits, narrow = trace([[0, 0, 8, 8]]), trace([[0, 0, 8, 8], [1, 3, 9, 8]])
    assert row_width.judge in asked(case, fits)
    assert row_width.judge(case, fits).status is PASS
    verdict = row_width.judge(case, narrow)
    assert told(verdict) == (FAIL, "page table row too narrow")
    assert "sequence 3 of page table 1 is 9 tokens long, in a row with room for 8" in verdict.detail
    assert row_width.judge not in asked(case, replace(fits, seen=()))
