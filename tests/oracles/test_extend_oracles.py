"""Verdicts on draft-extend batches, on traces made by hand: every planted mistake is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import kv_indices, kv_writes, metadata_shape
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.layout import req_to_token
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.only_verdict import only

SETUP = Setup(runner="draft_extend", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(4,), slots=4)
CASE = Case(
    setup=SETUP, steps=(Step(requests=(Request(slot=2, seq_len=5, data=0), Request(slot=3, seq_len=1, data=0))),)
)
TABLE = req_to_token(SETUP)
SOUND: dict[tuple[str, str], Any] = {
    ("launch", "bs"): 4,
    ("launch", "raw_bs"): 2,
    ("neutral", "seq_lens"): 1,
    ("metadata", "kv_indptr"): [[0, 5, 6, 6, 6]],
    ("metadata", "kv_indices"): [[*TABLE[2, :5], TABLE[3, 0], 0, 0]],
    ("metadata", "qo_indptr"): [[0, 3, 6, 9, 12]],
    ("input", "out_cache_loc"): [TABLE[2, 5:8], TABLE[3, 1:4]],
    ("graph", "kv_slots"): [0, *TABLE[2, 5:8], *TABLE[3, 1:4]],
}


def trace(changes: dict[tuple[str, str], Any] | None = None) -> Trace:
    arrays = SOUND | (changes or {})
    seen = [
        RecordedArray(step=0, path=path, name=name, array=np.asarray(array)) for (path, name), array in arrays.items()
    ]
    return Trace(
        ended=End(how=Termination.DONE),
        seen=(RecordedArray(step=-1, path="input", name="req_to_token", array=TABLE), *seen),
    )


def told(judge: Callable[..., Any], changes: dict[tuple[str, str], Any] | None = None) -> tuple[Status, str]:
    verdict = only(judge, CASE, trace(changes))
    return verdict.status, verdict.where


def test_a_sound_batch_passes() -> None:
    for oracle in (metadata_shape, kv_indices, kv_writes):
        assert told(oracle.judge) == (Status.PASS, "")


@pytest.mark.parametrize(
    "queries", [[0, 3, 6, 8, 12], [0, 2, 5, 8, 11], [0, 4, 8, 12, 16], [1, 4, 7, 10, 13], [0, 3, 6, 9]], ids=str
)
def test_every_row_of_the_bucket_has_its_queries(queries: list[int]) -> None:
    wrong = {("metadata", "qo_indptr"): [queries]}
    assert told(metadata_shape.judge, wrong) == (Status.FAIL, "queries of a row")


def test_new_tokens_are_no_prefix_of_themselves() -> None:
    """Up to 0.5.12 kv_indptr goes by seq_lens, which count the new tokens as well."""
    twice = {
        ("metadata", "kv_indptr"): [[0, 8, 12, 13, 14]],
        ("metadata", "kv_indices"): [[*TABLE[2, :8], *TABLE[3, :4], 0, 0]],
    }
    assert told(metadata_shape.judge, twice) == (Status.FAIL, "length of a real row")
    assert told(kv_indices.judge, twice) == (Status.FAIL, "segment of a real row")


def test_a_padded_row_has_no_prefix() -> None:
    more = {("metadata", "kv_indptr"): [[0, 5, 6, 7, 7]]}
    assert told(metadata_shape.judge, more) == (Status.FAIL, "length of a padded row")


def test_earlier_tokens_may_be_written_again_only_where_that_is_said() -> None:
    again = {("graph", "kv_slots"): [*SOUND["graph", "kv_slots"], TABLE[2, 4]]}
    assert told(kv_writes.judge, again) == (Status.FAIL, "slots not given, graph")
    values = {("input", "rewritten"): [[TABLE[2, 4]], [TABLE[3, 0]]]}
    assert told(kv_writes.judge, again | values) == (Status.PASS, "")
    other = {("graph", "kv_slots"): [TABLE[2, 3]]}
    assert told(kv_writes.judge, other | values) == (Status.FAIL, "slots not given, graph")
