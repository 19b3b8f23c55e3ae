"""The frozen-KV runner on every installed release: whole records, known verdicts, inputs that all matter, same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from only_verdict import only

from oracles import kv_indices, kv_writes, metadata_shape
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.layout import WINDOW, req_to_token
from repro.cases.release_list import has_runner
from repro.cases.releases import release_order
from repro.traces.finding import Status
from repro.traces.trace import Ended, How, Seen, Trace
from runners.processes.pool import Pool
from tests.altered_frozen_kv import PARTS
from tests.altered_session import SHIFT
from tests.same_bits import bits

SETUP = Setup(runner="frozen_kv_mtp", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)
OUTPUTS = ("tokens", "parents", "scores_index")
# The releases in which a batch that does not fill its bucket leaves stale rows behind it (#26292).
STALE_UNTIL = release_order("0.5.12.post1")
STALE = {"slot0_padding": "padded rows of req_pool_indices", "kv_indices": "segment of a padded row"}
# Positions are made anew from seq_lens in every release.
UNUSED = {"positions"}
FIRST_DRAFTS = {"topk_index", "topk_p"}
SAME_WORKER = {"0.5.13.post1": "0.5.13", "0.5.14": "0.5.15.post1"}


def step(*rows: tuple[int, int, int]) -> Step:
    """A call with these requests: slot, seq_len, data."""
    return Step(requests=tuple(Request(slot=slot, seq_len=seq_len, data=data) for slot, seq_len, data in rows))


FULL = step((1, 9, 1), (2, 17, 2), (3, WINDOW, 3), (4, 30, 4))
PADDED = step((5, WINDOW - 1, 5), (2, WINDOW + 1, 6), (3, 64, 7))
ONE = step((6, 1, 8))


def case(*steps: Step, **changes: Any) -> Case:
    return Case(setup=replace(SETUP, **changes), steps=steps)


def failures(one: Case, trace: Trace) -> dict[str, str]:
    return {v.oracle: v.where for v in judge_all(one, trace) if v.status is Status.FAIL}


@pytest.fixture(scope="module")
def release(target: Target) -> str:
    """One that has the runner."""
    if not target.is_checkout and not has_runner(target.sglang, "frozen_kv_mtp"):
        pytest.skip(f"sglang {target.sglang} has no frozen-KV runner")
    return target.sglang


@pytest.fixture(scope="module")
def trace(pool: Pool, release: str) -> Trace:
    return pool.run(case(FULL, PADDED, ONE))


@pytest.fixture(scope="module")
def stale(trace: Trace) -> bool:
    """Whether this release has #26292."""
    return release_order(trace.facts["sglang"]) <= STALE_UNTIL


def test_a_release_without_the_runner_is_unsupported_and_says_so(pool: Pool, target: Target) -> None:
    if target.is_checkout or has_runner(target.sglang, "frozen_kv_mtp"):
        pytest.skip("it has the runner")
    ended = pool.run(case(ONE)).ended
    assert ended.how is How.UNSUPPORTED
    assert "is older than 0.5.12, the oldest release in which the frozen_kv_mtp runner can be driven" in ended.what


def test_the_oracles_say_what_is_known_of_the_release(trace: Trace, stale: bool) -> None:
    assert trace.ended.how is How.DONE, trace.ended
    one = case(FULL, PADDED, ONE)
    verdicts = {v.oracle: v.status for v in judge_all(one, trace)}
    assert failures(one, trace) == (STALE if stale else {})
    told = {"slot0_padding", "kv_indices", "metadata_shape", "staged", "kv_writes", "graph_equals_eager", "bucket"}
    assert {oracle for oracle in told if verdicts[oracle] is not Status.PASS} == (set(STALE) if stale else set())


def test_without_padding_every_release_passes(pool: Pool, release: str) -> None:
    one = case(FULL, ONE)
    assert overall(judge_all(one, pool.run(one))) is Status.PASS


def test_the_record_is_complete(trace: Trace) -> None:
    topk, hidden = SETUP.topk, SETUP.hidden_size
    first = "topk_p" in trace.path(0, "launch")
    buffers = {"req_pool_indices", "seq_lens", "positions", "seq_lens_cpu", "hidden_states"}
    buffers |= FIRST_DRAFTS if first else {"bonus_tokens"}
    for number, one in enumerate((FULL, PADDED, ONE)):
        count = len(one.requests)
        launch, given = trace.path(number, "launch"), trace.path(number, "input")
        assert launch.keys() == buffers | {"bs", "raw_bs"}
        assert (launch["raw_bs"], launch["bs"]) == (count, SETUP.bucket(count))
        for name in ("req_pool_indices", "seq_lens", "positions", "seq_lens_cpu"):
            assert launch[name].shape == (SETUP.max_bs, topk)
        assert launch["hidden_states"].shape == (SETUP.max_bs, hidden)
        assert given["seq_lens"].tolist() == [[request.seq_len] * topk for request in one.requests]
        assert given["req_pool_indices"].tolist() == [[request.slot] * topk for request in one.requests]
        names = {"kv_indptr", "kv_indices", "window_kv_indptr", "window_kv_indices"}
        assert trace.path(number, "metadata").keys() == names
        for path in ("graph", "eager"):
            found = trace.path(number, path)
            assert found["tokens"].shape == (count, SETUP.num_draft_tokens - 1)
            assert ((found["tokens"] >= 0) & (found["tokens"] < SETUP.vocab_size)).all()
            assert found["kv_slots"].size == 0, "frozen"
        assert int(trace.path(number, "guard")["intact"]) > 1000
    table = trace.get(-1, "input", "req_to_token")
    assert table is not None
    np.testing.assert_array_equal(table, req_to_token(SETUP))


def test_the_same_case_gives_the_same_bits(pool: Pool, trace: Trace) -> None:
    one = case(FULL, PADDED, ONE)
    assert pool.run(case(ONE, FULL)).ended.how is How.DONE
    assert bits(pool.run(one)) == bits(trace)


@pytest.mark.parametrize(
    "changes",
    [
        {"topk": 1, "page_size": 4},
        {"dtype": "float16", "num_heads": 4, "num_kv_heads": 2, "kv_splits": 2},
        {"topk": 4, "num_draft_tokens": 9, "capture_bs": (2, 4), "hidden_size": 48},
    ],
    ids=str,
)
def test_other_setups(changes: dict[str, object], pool: Pool, stale: bool) -> None:
    one = case(FULL, PADDED, ONE, **changes)
    trace = pool.run(one)
    assert trace.ended.how is How.DONE, trace.ended
    assert failures(one, trace) == (STALE if stale else {})


# Every input matters ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def altered(target: Target, release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if release in SAME_WORKER:
        pytest.skip(f"a worker of its own imports sglang once more, and {SAME_WORKER[release]} has the same runner")
    log = tmp_path_factory.mktemp("altered") / "log"
    with Pool(target, session="tests.altered_frozen_kv", log=log) as one:
        yield one


def drafts(trace: Trace, number: int, row: int) -> list[list[int]]:
    """What the graph drafted for one request."""
    return [trace.path(number, "graph")[name][row].tolist() for name in OUTPUTS]


def test_every_input_reaches_the_result(altered: Pool) -> None:
    """Row 0 is changed in one input at a time; row 1 has nothing to do with it."""
    datas = (10, 20, 30)
    numbers = [(data, part) for data in datas for part in range(len(PARTS) + 1)]
    batches = [step((1, 9, data + (part << SHIFT)), (2, 20, data + 50)) for data, part in numbers]
    trace = altered.run(case(*batches))
    assert trace.ended.how is How.DONE, trace.ended
    reached = dict.fromkeys(PARTS, 0)
    for number, (data, part) in enumerate(numbers):
        base = numbers.index((data, 0))
        assert drafts(trace, number, 1) == drafts(trace, base, 1)
        if not part:
            continue
        name = PARTS[part - 1]
        given, before = trace.path(number, "input"), trace.path(base, "input")
        changed = {key for key in given if not np.array_equal(given[key], before[key])}
        assert changed == ({name} & given.keys())
        reached[name] += drafts(trace, number, 0) != drafts(trace, base, 0)
    unused = UNUSED | ({"bonus_tokens"} if "topk_p" in trace.path(0, "launch") else FIRST_DRAFTS)
    assert {name for name, count in reached.items() if not count} == unused


# The windows of sliding layers -----------------------------------------------------------------------------------


def window_trace(indptr: list[int], indices: list[int]) -> tuple[Case, Trace]:
    """One request of ten tokens without branches; what a sliding layer was told."""
    one = case(step((1, 10, 1)), topk=1, num_draft_tokens=4, capture_bs=(1,), slots=1)
    table = req_to_token(one.setup)
    scalars = {"bs": 1, "raw_bs": 1}
    arrays = {
        "kv_indptr": np.array([[0, 10]]),
        "kv_indices": table[1:2, :10],
        "window_kv_indptr": np.array([indptr]),
        "window_kv_indices": table[1][indices][None],
    }
    seen = [
        Seen(step=-1, path="input", name="req_to_token", array=table),
        Seen(step=-1, path="neutral", name="seq_lens", array=np.asarray(1)),
        *(Seen(step=0, path="launch", name=name, array=np.asarray(value)) for name, value in scalars.items()),
        *(Seen(step=0, path="metadata", name=name, array=array) for name, array in arrays.items()),
    ]
    return one, Trace(ended=Ended(how=How.DONE), seen=tuple(seen))


def test_a_window_is_the_end_of_the_prefix() -> None:
    one, sound = window_trace([0, WINDOW], list(range(10 - WINDOW, 10)))
    assert kv_indices.judge(one, sound).status is Status.PASS
    assert metadata_shape.judge(one, sound).status is Status.PASS
    one, early = window_trace([0, WINDOW], list(range(9 - WINDOW, 9)))
    verdict = kv_indices.judge(one, early)
    assert (verdict.status, verdict.where) == (Status.FAIL, "segment of a real row")
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.column) == ("window_kv_indices", 0)
    one, long = window_trace([0, WINDOW + 1], list(range(9 - WINDOW, 10)))
    assert metadata_shape.judge(one, long).where == "length of a real row"


def test_a_runner_that_is_given_no_slots_must_write_none() -> None:
    one, _ = window_trace([0, WINDOW], list(range(10 - WINDOW, 10)))

    def judged(*slots: int) -> tuple[Status, str]:
        seen = [
            Seen(step=0, path=path, name="kv_slots", array=np.array(slots, dtype=np.int64))
            for path in ("graph", "eager")
        ]
        verdict = only(kv_writes.judge, one, Trace(ended=Ended(how=How.DONE), seen=tuple(seen)))
        return verdict.status, verdict.where

    assert judged() == (Status.PASS, "")
    assert judged(0) == (Status.PASS, "")
    assert judged(0, 5) == (Status.FAIL, "slots not given, eager, graph")
