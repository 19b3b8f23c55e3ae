"""Verdicts on sliding windows, idle batches and other layouts, on traces made by hand: every planted mistake is
told by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import bucket, graph_equals_eager, kv_indices, metadata_shape, planned, slot0_padding, staged, tree_mask
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.layout import req_to_token
from repro.cases.rows.serving import FREED
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.only_verdict import only

WINDOW = 3
DECODE = Setup(
    runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2,), slots=3, window=WINDOW, context_len=16
)
VERIFY = replace(DECODE, runner="verify", topk=2, backend="flashinfer", dtype="float16", head_dim=64)
STEP = Step(requests=(Request(slot=2, seq_len=6, data=0), Request(slot=3, seq_len=2, data=0)))
TABLE = req_to_token(DECODE)
Arrays = Mapping[tuple[str, str], Any]
Judge = Callable[..., Any]


def told(judge: Judge, case: Case, steps: Sequence[Arrays]) -> tuple[Status, str]:
    verdict = judged(judge, case, steps)
    return verdict.status, verdict.where


def judged(judge: Judge, case: Case, steps: Sequence[Arrays]) -> Verdict:
    seen = [
        RecordedArray(step=number, path=path, name=name, array=np.asarray(array))
        for number, arrays in enumerate(steps)
        for (path, name), array in arrays.items()
    ]
    table = RecordedArray(step=-1, path="input", name="req_to_token", array=req_to_token(case.setup))
    return only(judge, case, Trace(ended=End(how=Termination.DONE), seen=(table, *seen)))


def read(lengths: list[int], slots: list[Any], prefix: str = "window_") -> dict[tuple[str, str], Any]:
    return {
        ("launch", "bs"): 2,
        ("neutral", "seq_lens"): 1,
        ("metadata", f"{prefix}kv_indptr"): [np.append(0, np.cumsum(lengths))],
        ("metadata", f"{prefix}kv_indices"): [np.concatenate([*slots, [0, 0]])],
    }


def decoded(first: int, last: int = 6) -> dict[tuple[str, str], Any]:
    """The tokens that are read of a request of six; the other one has two."""
    return read([last - first, 2], [TABLE[2, first:last], TABLE[3, :2]])


def test_a_decoded_token_sees_a_window_and_itself() -> None:
    case = Case(setup=DECODE, steps=(STEP,))
    assert told(metadata_shape.judge, case, [decoded(2)]) == (Status.PASS, "")
    assert told(kv_indices.judge, case, [decoded(2)]) == (Status.PASS, "")
    for first in (0, 1, 3):  # Triton's kernel masks nothing of it
        assert told(metadata_shape.judge, case, [decoded(first)]) == (Status.FAIL, "length of a real row, window")
    cell = judged(metadata_shape.judge, case, [decoded(0)]).cell
    assert cell is not None and cell.buffer == "window_kv_indptr", "the window's own, by its name"
    assert told(kv_indices.judge, case, [decoded(0, 4)]) == (Status.FAIL, "segment of a real row, window")


@pytest.mark.parametrize(("first", "right"), [(0, True), (2, True), (3, True), (4, False)])
def test_a_verified_tree_may_read_more_than_its_window_up_to_the_last(first: int, right: bool) -> None:
    case = Case(setup=VERIFY, steps=(STEP,))
    rows = read([8 - first, 4], [TABLE[2, first:8], TABLE[3, :4]])
    assert told(metadata_shape.judge, case, [rows])[0] is (Status.PASS if right else Status.FAIL)
    assert told(kv_indices.judge, case, [rows])[0] is (Status.PASS if right else Status.FAIL)


def test_the_first_tokens_of_a_prefix_are_not_its_window() -> None:
    rows = read([5, 4], [TABLE[2, :5], TABLE[3, :4]])
    case = Case(setup=VERIFY, steps=(STEP,))
    assert told(metadata_shape.judge, case, [rows]) == (Status.PASS, "")
    assert told(kv_indices.judge, case, [rows]) == (Status.FAIL, "segment of a real row, window")


@pytest.mark.parametrize(
    ("freed", "prefix", "passes"),
    [([True, False], "window_", True), ([False, True], "window_", False), ([True, False], "", False)],
)
def test_a_request_that_gave_back_its_sliding_slots_has_any(freed: list[bool], prefix: str, passes: bool) -> None:
    case = Case(setup=DECODE if prefix else replace(DECODE, window=0), steps=(STEP,))
    first = 2 if prefix else 0
    rows = read([6 - first, 2], [[0] * (6 - first), TABLE[3, :2]], prefix) | {("input", FREED): freed}
    assert told(kv_indices.judge, case, [rows])[0] is (Status.PASS if passes else Status.FAIL)


def masked(prefix: list[int], tree: list[list[int]]) -> dict[tuple[str, str], Any]:
    """A chain of two tokens behind six, over the last five of which there are masks."""
    return {
        ("input", "seq_lens"): [6],
        ("input", "scores_index"): [[0]],
        ("input", "parents"): [[-1]],
        ("launch", "positions"): [[6, 7]],
        ("metadata", "window_kv_indptr"): [[0, 5]],
        ("metadata", "mask_indptr"): [0, 10],
        ("metadata", "custom_mask"): np.array([[*prefix, *row] for row in tree]).reshape(-1),
    }


def test_a_mask_may_hide_what_the_window_hides() -> None:
    case = Case(setup=VERIFY, steps=(replace(STEP, requests=STEP.requests[:1]),))
    tree = [[1, 0], [1, 1]]
    assert told(tree_mask.judge, case, [masked([1, 1, 1], tree)]) == (Status.PASS, "")
    # The second token is too far from the first of the three; the first is not.
    assert told(tree_mask.judge, case, [masked([0, 1, 1], tree)]) == (Status.FAIL, "mask over the prefix")
    assert told(tree_mask.judge, case, [masked([1, 1, 1], [[1, 1], [1, 1]])]) == (Status.FAIL, "mask over the tree")


def test_slots_are_those_of_the_layout() -> None:
    plain = replace(DECODE, window=0)
    case = Case(setup=plain, steps=(STEP, replace(STEP, layout=1)))
    moved = req_to_token(plain, 1)
    assert sorted(moved[1:].reshape(-1)) == sorted(TABLE[1:].reshape(-1))
    rows = [read([6, 2], [table[2, :6], table[3, :2]], prefix="") for table in (TABLE, moved)]
    rows[1]["input", "req_to_token"] = moved
    assert told(kv_indices.judge, case, rows) == (Status.PASS, "")
    stale = {**rows[1], ("metadata", "kv_indices"): rows[0]["metadata", "kv_indices"]}
    assert told(kv_indices.judge, case, [rows[0], stale]) == (Status.FAIL, "segment of a real row")


def test_an_idle_batch_is_all_padding() -> None:
    plain = replace(DECODE, window=0)
    case = Case(setup=plain, steps=(STEP, Step(requests=())))
    idle: dict[tuple[str, str], Any] = {
        ("launch", "bs"): 2,
        ("launch", "raw_bs"): 0,
        ("launch", "seq_lens"): [1, 1],
        ("launch", "req_pool_indices"): [0, 0],
        ("neutral", "seq_lens"): 1,
        ("neutral", "req_pool_indices"): 0,
        ("input", "seq_lens"): np.empty(0, dtype=np.int64),
        ("planned", "seq_lens"): [1, 1],
        ("planned", "seq_lens_sum"): 2,
        ("metadata", "kv_indptr"): [[0, 1, 2]],
        ("metadata", "kv_indices"): [[0, 0, 0]],
    }
    for oracle in (slot0_padding, kv_indices, metadata_shape, planned, bucket):
        assert told(oracle.judge, case, [{}, idle]) == (Status.PASS, ""), oracle
    assert told(staged.judge, case, [{}, idle])[0] is Status.UNKNOWN
    stale = {**idle, ("launch", "req_pool_indices"): [0, 2]}
    assert told(slot0_padding.judge, case, [{}, stale]) == (Status.FAIL, "padded rows of req_pool_indices")
    unsummed = {**idle, ("planned", "seq_lens_sum"): 0}
    assert told(planned.judge, case, [{}, unsummed]) == (Status.FAIL, "planned with seq_lens_sum")


def test_graph_and_eager_are_compared_where_a_runner_was_asked_and_took_the_batch() -> None:
    case = Case(setup=replace(DECODE, window=0, padded=False), steps=(STEP,))
    values = np.ones((2, 4), dtype=np.float32)
    both = {("asked", "can_run"): 1, ("graph", "logits"): values, ("eager", "logits"): values, ("eager", "kv_same"): 1}
    both |= {(path, name): [] for path in ("graph", "eager") for name in ("kv_slots",)}
    assert told(graph_equals_eager.judge, case, [both]) == (Status.PASS, "")
    alone = {("asked", "can_run"): 0, ("eager", "logits"): values}
    assert told(graph_equals_eager.judge, case, [alone])[0] is Status.UNKNOWN
