"""KV moves: the plain model, the oracle on records that are changed by hand, and every installed release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import kv_moves
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, problems
from repro.cases.kv_move_model import (
    accept_index,
    accepted_nodes,
    accepted_pairs,
    branch_pairs,
    correct_drafts,
    finishes,
    freed,
)
from repro.cases.layout import draft_positions, req_to_token
from repro.cases.payload import floats
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Status
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import failures
from tests.builders.known_failures import has_fix_of
from tests.builders.only_verdict import only
from tests.builders.toy_traces import changed

SETUP = Setup(
    runner="kv_move",
    topk=3,
    num_steps=3,
    num_draft_tokens=5,
    capture_bs=(4,),
    slots=4,
    page_size=16,
    context_len=128,
    num_kv_heads=1,
)
STEP = Step(
    requests=(
        Request(slot=1, seq_len=9, data=1, accepted=1),
        Request(slot=3, seq_len=19, data=4, accepted=3),
        Request(slot=2, seq_len=32, data=6, accepted=0),
        Request(slot=4, seq_len=47, data=8, accepted=2),
    )
)
CASE = Case(setup=SETUP, steps=(STEP, STEP))
TAIL = "verify_tail: a target is neither allocated nor 0"
# From here on sglang moves the accepted rows of EAGLE v2's trees.
ACCEPT_FROM = release_order("0.5.13")
# The last release in which a verify of the first workers moves anything.
VERIFY_UNTIL = release_order("0.5.13.post1")


def test_the_case_is_valid() -> None:
    assert problems(CASE) == []


def test_accepted_nodes_are_the_root_and_rising() -> None:
    for request in STEP.requests:
        nodes = accepted_nodes(SETUP, request)
        assert nodes[0] == 0
        assert (np.diff(nodes) > 0).all()
        assert nodes[-1] < SETUP.num_draft_tokens
        assert nodes.size == request.accepted + 1
    # More than the tree holds cannot be accepted.
    assert correct_drafts(replace(SETUP, num_draft_tokens=2), STEP.requests[1]) == 1


def test_accept_index_counts_through_the_batch() -> None:
    index = accept_index(SETUP, STEP.requests)
    assert index.shape == (4, 4)
    assert (index >= 0).sum(axis=1).tolist() == [2, 4, 1, 3]
    assert index[:, 0].tolist() == [0, 5, 10, 15]
    assert index[2, 1:].tolist() == [-1, -1, -1]


def test_a_branch_begins_with_a_copy_of_the_last_page() -> None:
    table = req_to_token(SETUP)
    request = STEP.requests[1]
    pairs = branch_pairs(SETUP, table, request)
    assert pairs.shape == (2 * 3, 2)
    row = table[3]
    assert pairs[:, 1].tolist() == row[16:19].tolist() * 2
    starts = [int(first) - 3 for first in draft_positions(SETUP, 19)[1:, 0]]
    assert [start % 16 for start in starts] == [0, 0]
    assert pairs[:, 0].tolist() == [slot for start in starts for slot in row[start : start + 3].tolist()]
    assert branch_pairs(SETUP, table, STEP.requests[2]).size == 0, "a prefix that fills its page"
    for setup, what in (
        (replace(SETUP, page_size=1), "pages of a token"),
        (replace(SETUP, topk=1), "one branch, which continues there"),
    ):
        assert branch_pairs(setup, req_to_token(setup), request).shape == (0, 2), what


def test_only_whole_pages_are_given_back() -> None:
    table = req_to_token(SETUP)
    assert freed(SETUP, table, STEP.requests[0]).size == 0
    # 47 + 3 accepted end on the page that ends at 64, with all 52 - 47 tokens of the tree in it or before it.
    assert freed(SETUP, table, STEP.requests[3]).size == 0
    example = replace(SETUP, page_size=1)
    assert freed(example, req_to_token(example), STEP.requests[1]).size == 1
    longest = replace(STEP.requests[0], seq_len=15, accepted=0)
    assert freed(SETUP, table, longest).tolist() == table[1, 16:20].tolist()


def sound() -> Trace:
    """The record of a correct move, by the definition of each path."""
    table = req_to_token(SETUP)
    seen = [RecordedArray(step=-1, path="input", name="req_to_token", array=table)]
    rows = floats(5, "rows", (int(table.max()) + 1, 4))
    for number, step in enumerate(CASE.steps):
        room = RUNNER_FACTS["kv_move"].room
        spans = [table[r.slot, r.seq_len // 16 * 16 : room(SETUP, r.seq_len)] for r in step.requests]
        watched = np.unique(np.concatenate(spans))
        arrays: dict[tuple[str, str], Array] = {
            ("before", "kv_slots"): watched,
            ("before", "kv_rows"): rows[watched],
        }
        for path, model in kv_moves.PATHS.items():
            pairs = np.concatenate([model(SETUP, table, request) for request in step.requests])
            after = rows.copy()
            after[pairs[:, 0]] = rows[pairs[:, 1]]
            moved = np.flatnonzero((after != rows).any(axis=1))
            arrays |= {
                (path, "targets"): np.append(pairs[:, 0], 0),
                (path, "kv_slots"): moved,
                (path, "kv_rows"): after[moved],
            }
        going_on = [r for r in step.requests if not finishes(r)]
        arrays["verify", "freed"] = np.concatenate([freed(SETUP, table, r) for r in step.requests])
        arrays["verify", "left"] = np.concatenate([accepted_pairs(SETUP, table, r)[:, 0] for r in going_on])
        arrays["verify", "lengths"] = np.array([r.seq_len + 1 + correct_drafts(SETUP, r) for r in step.requests])
        seen += [
            RecordedArray(step=number, path=path, name=name, array=array) for (path, name), array in arrays.items()
        ]
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def told(trace: Trace) -> tuple[Status, str]:
    verdict = only(kv_moves.judge, CASE, trace)
    return verdict.status, verdict.where


def with_first(value: int) -> Callable[[Array], Array]:
    return lambda array: np.concatenate([[value], array[1:]])


def test_a_correct_move_passes() -> None:
    assert told(sound()) == (Status.PASS, "")
    assert overall(judge_all(CASE, sound())) is Status.PASS


def test_without_a_move_it_does_not_know() -> None:
    assert told(Trace(ended=End(how=Termination.DONE))) == (Status.UNKNOWN, "no move recorded")


def test_a_lost_target() -> None:
    # The first token of a prefix: a slot that is in use, and nobody's target.
    prefix = int(req_to_token(SETUP)[1, 0])
    for path in kv_moves.PATHS:
        trace = changed(sound(), 1, path, "targets", with_first(prefix))
        assert told(trace) == (Status.FAIL, f"{path}: a target is neither allocated nor 0")
        assert (
            str(only(kv_moves.judge, CASE, trace).cell)
            == f"step 1 targets[0,0] is {prefix}, expected an allocated slot or 0"
        )


def test_a_row_with_other_contents() -> None:
    trace = changed(sound(), 0, "accept", "kv_rows", lambda rows: np.add(rows, 1, dtype=rows.dtype))
    assert told(trace) == (Status.FAIL, "accept: a row is not where it belongs")


def test_a_row_that_did_not_move() -> None:
    trace = changed(sound(), 0, "branches", "kv_slots", lambda slots: slots[:-1])
    trace = changed(trace, 0, "branches", "kv_rows", lambda rows: rows[:-1])
    assert told(trace) == (Status.FAIL, "branches: a row is not where it belongs")


def test_another_slot_that_changed() -> None:
    lost = int(req_to_token(SETUP)[2, 1])
    trace = changed(sound(), 0, "verify", "kv_slots", lambda slots: np.append(slots, lost))
    trace = changed(trace, 0, "verify", "kv_rows", lambda rows: np.concatenate([rows, rows[:1]]))
    assert told(trace) == (Status.FAIL, "verify: another slot changed")
    reserved = changed(sound(), 0, "verify", "kv_slots", lambda slots: np.append(slots, 0))
    reserved = changed(reserved, 0, "verify", "kv_rows", lambda rows: np.concatenate([rows, rows[:1]]))
    assert told(reserved) == (Status.PASS, "")


@pytest.mark.parametrize("name", ["freed", "left", "lengths"])
def test_wrong_lists(name: str) -> None:
    trace = changed(sound(), 0, "verify", name, lambda slots: np.append(slots, 3))
    assert told(trace) == (Status.FAIL, f"verify: the list {name} is wrong")


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    return pool.run(CASE)


@pytest.fixture(scope="module")
def uncleared(trace: Trace) -> bool:
    """True if this release has the bug of #26335."""
    return not has_fix_of("pr26335-uninitialised-tail", trace.facts["sglang"])


def test_the_record_is_complete(trace: Trace) -> None:
    release = release_order(trace.facts["sglang"])
    paths = {"before", "branches"} | ({"accept"} if release >= ACCEPT_FROM else set())
    paths |= {"verify", "verify_tail"} if release <= VERIFY_UNTIL else set()
    for number in range(len(CASE.steps)):
        assert trace.paths(number) >= paths
        for path in paths - {"before"}:
            assert {"targets", "sources", "kv_slots", "kv_rows"} <= trace.path(number, path).keys(), path
        if release <= VERIFY_UNTIL:
            assert {"freed", "left"} <= trace.path(number, "verify").keys()


def test_the_tail_is_the_poison_or_zero(trace: Trace, uncleared: bool) -> None:
    if release_order(trace.facts["sglang"]) > VERIFY_UNTIL:
        pytest.skip("this release no longer has this move")
    targets = trace.path(0, "verify_tail")["targets"]
    tail = targets[sum(r.accepted + 1 for r in STEP.requests) :]
    assert tail.size == 4 * 4 - (2 + 4 + 1 + 3)
    assert set(tail.tolist()) == {int(req_to_token(SETUP)[1, 0]) if uncleared else 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 1, "topk": 8},
        {"page_size": 64, "topk": 2, "context_len": 512},
        {"page_size": 256, "topk": 5, "context_len": 2560, "num_steps": 6, "num_draft_tokens": 16, "slots": 2},
        {"page_size": 256, "topk": 8, "context_len": 2560, "dtype": "float16", "slots": 2, "num_kv_heads": 2},
        {"page_size": 16, "topk": 1, "num_draft_tokens": 4},
    ],
    ids=lambda changes: f"page {changes['page_size']} topk {changes['topk']}",
)
def test_other_shapes(changes: dict[str, Any], pool: Pool, uncleared: bool) -> None:
    setup = replace(SETUP, **{"capture_bs": (2,), **changes})
    requests = (Request(slot=2, seq_len=61, data=3, accepted=0), Request(slot=1, seq_len=9, data=2, accepted=3))
    example = Case(setup=setup, steps=(Step(requests=requests),))
    assert problems(example) == []
    trace = pool.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    assert failures(example, trace) == ({"kv_moves": {TAIL}} if uncleared else {})


def test_where_everything_is_accepted_there_is_no_tail(pool: Pool) -> None:
    full = tuple(replace(request, accepted=SETUP.num_steps) for request in STEP.requests)
    example = Case(setup=SETUP, steps=(Step(requests=full),))
    assert overall(judge_all(example, pool.run(example))) is Status.PASS


def test_each_input_counts(trace: Trace, pool: Pool) -> None:
    changes: dict[str, Any] = {"slot": 2, "seq_len": 10, "accepted": 2}
    for name, value in changes.items():
        others = replace(STEP.requests[0], **{name: value})
        rest = [r for r in STEP.requests[1:] if r.slot != others.slot]
        example = Case(setup=SETUP, steps=(Step(requests=(others, *rest)),))
        path = "verify" if "verify" in trace.paths(0) else "accept"
        sources = pool.run(example).path(0, path)["sources"]
        assert not np.array_equal(sources, trace.path(0, path)["sources"]), name
