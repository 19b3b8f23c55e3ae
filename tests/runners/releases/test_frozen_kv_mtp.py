"""The frozen-KV runner: what its record holds, setups that conformance does not try, the windows of sliding layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import kv_indices, kv_writes, metadata_shape
from repro.cases.case import Case, Setup, Step, Target
from repro.cases.layout import WINDOW, req_to_token
from repro.cases.release_list import has_runner
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import failures, step
from tests.builders.known_failures import may_fail, must_fail
from tests.builders.tiers import few

SETUP = Setup(runner="frozen_kv_mtp", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)
FIRST_DRAFTS = {"topk_index", "topk_p"}


FULL = step((1, 9, 1), (2, 17, 2), (3, WINDOW, 3), (4, 30, 4))
PADDED = step((5, WINDOW - 1, 5), (2, WINDOW + 1, 6), (3, 64, 7))
ONE = step((6, 1, 8))


def case(*steps: Step, **changes: Any) -> Case:
    return Case(setup=replace(SETUP, **changes), steps=steps)


@pytest.fixture(scope="module")
def release(target: Target) -> str:
    """One that has the runner."""
    if not target.is_checkout and not has_runner(target.sglang, "frozen_kv_mtp"):
        pytest.skip(f"sglang {target.sglang} has no frozen-KV runner")
    return target.sglang


@pytest.fixture(scope="module")
def trace(pool: Pool, release: str) -> Trace:
    return pool.run(case(FULL, PADDED, ONE))


def test_the_record_is_complete(trace: Trace) -> None:
    topk, hidden = SETUP.topk, SETUP.hidden_size
    first = "topk_p" in trace.path(0, "launch")
    buffers = {"req_pool_indices", "seq_lens", "positions", "seq_lens_cpu", "hidden_states"}
    buffers |= FIRST_DRAFTS if first else {"bonus_tokens"}
    for number, batch in enumerate((FULL, PADDED, ONE)):
        count = len(batch.requests)
        launch, inputs = trace.path(number, "launch"), trace.path(number, "input")
        assert launch.keys() == buffers | {"bs", "raw_bs"}
        assert (int(launch["raw_bs"]), int(launch["bs"])) == (count, SETUP.bucket(count))
        for name in ("req_pool_indices", "seq_lens", "positions", "seq_lens_cpu"):
            assert launch[name].shape == (SETUP.max_bs, topk)
        assert launch["hidden_states"].shape == (SETUP.max_bs, hidden)
        assert inputs["seq_lens"].tolist() == [[request.seq_len] * topk for request in batch.requests]
        assert inputs["req_pool_indices"].tolist() == [[request.slot] * topk for request in batch.requests]
        names = {"kv_indptr", "kv_indices", "window_kv_indptr", "window_kv_indices"}
        assert trace.path(number, "metadata").keys() == names
        for path in ("graph", "eager"):
            recorded = trace.path(number, path)
            assert recorded["tokens"].shape == (count, SETUP.num_draft_tokens - 1)
            assert set(recorded["tokens"].flatten().tolist()) <= set(range(SETUP.vocab_size))
            assert recorded["kv_slots"].size == 0, "frozen"
        assert int(trace.path(number, "guard")["intact"]) > 1000
    table = trace.get(-1, "input", "req_to_token")
    assert table is not None
    np.testing.assert_array_equal(table, req_to_token(SETUP))


@pytest.mark.parametrize(
    "changes",
    few(
        [
            {"topk": 4, "num_draft_tokens": 9, "capture_bs": (2, 4), "hidden_size": 48},
            {"topk": 1, "page_size": 4},
            {"dtype": "float16", "num_heads": 4, "num_kv_heads": 2, "kv_splits": 2},
        ],
        1,
    ),
    ids=str,
)
def test_other_setups(changes: dict[str, object], pool: Pool, release: str) -> None:
    varied = case(FULL, PADDED, ONE, **changes)
    trace = pool.run(varied)
    assert trace.ended.how is Termination.DONE, trace.ended
    here = trace.facts["sglang"]
    known = may_fail("frozen_kv_mtp", "triton", here, trace.facts["engine"])
    assert must_fail("frozen_kv_mtp", "triton", here) <= failures(varied, trace).keys() <= known


def window_trace(indptr: list[int], indices: list[int]) -> tuple[Case, Trace]:
    """One request of ten tokens without branches; what a sliding layer was told."""
    sample = case(step((1, 10, 1)), topk=1, num_draft_tokens=4, capture_bs=(1,), slots=1)
    table = req_to_token(sample.setup)
    scalars = {"bs": 1, "raw_bs": 1}
    arrays = {
        "kv_indptr": np.array([[0, 10]]),
        "kv_indices": table[1:2, :10],
        "window_kv_indptr": np.array([indptr]),
        "window_kv_indices": table[1][indices][None],
    }
    seen = [
        RecordedArray(step=-1, path="input", name="req_to_token", array=table),
        RecordedArray(step=-1, path="neutral", name="seq_lens", array=np.asarray(1)),
        *(RecordedArray(step=0, path="launch", name=name, array=np.asarray(value)) for name, value in scalars.items()),
        *(RecordedArray(step=0, path="metadata", name=name, array=array) for name, array in arrays.items()),
    ]
    return sample, Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def test_a_window_is_the_end_of_the_prefix() -> None:
    sample, sound = window_trace([0, WINDOW], list(range(10 - WINDOW, 10)))
    assert kv_indices.judge(sample, sound).status is Status.PASS
    assert metadata_shape.judge(sample, sound).status is Status.PASS
    sample, early = window_trace([0, WINDOW], list(range(9 - WINDOW, 9)))
    verdict = kv_indices.judge(sample, early)
    assert (verdict.status, verdict.where) == (Status.FAIL, "segment of a real row, window")
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.column) == ("window_kv_indices", 0)
    sample, long = window_trace([0, WINDOW + 1], list(range(9 - WINDOW, 10)))
    assert metadata_shape.judge(sample, long).where == "length of a real row, window"


def test_a_runner_that_is_given_no_slots_must_write_none() -> None:
    sample, _ = window_trace([0, WINDOW], list(range(10 - WINDOW, 10)))

    def judged(*slots: int) -> set[tuple[Status, str]]:
        seen = [
            RecordedArray(step=0, path=path, name="kv_slots", array=np.array(slots, dtype=np.int64))
            for path in ("graph", "eager")
        ]
        verdicts = kv_writes.judge(sample, Trace(ended=End(how=Termination.DONE), seen=tuple(seen)))
        return {
            (verdict.status, verdict.where) for verdict in ((verdicts,) if isinstance(verdicts, Verdict) else verdicts)
        }

    assert judged() == {(Status.PASS, "")}
    assert judged(0) == {(Status.PASS, "")}
    assert judged(0, 5) == {(Status.FAIL, "slots not given, eager"), (Status.FAIL, "slots not given, graph")}
