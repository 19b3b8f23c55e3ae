"""history, kv_reads, attributes, and the fields that staged is shown: judged from made-up records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import attributes, history, kv_reads, staged
from oracles.catalogue import asked
from oracles.trace_index import Judge
from repro.cases.layout import req_to_token
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.cases import FULL, PADDED, case_of, setup_of

CASE = case_of(setup_of("decode"), FULL, PADDED)
TABLE = req_to_token(CASE.setup)
LAST = 1
PASSED = (Status.PASS, "")
# What the last batch reads: every token of its requests.
READ = np.unique(np.concatenate([TABLE[request.slot, : request.seq_len] for request in CASE.steps[LAST].requests]))


def trace(**paths: dict[str, Any]) -> Trace:
    arrays = [
        RecordedArray(step=LAST, path=path, name=name, array=np.asarray(array))
        for path, rows in paths.items()
        for name, array in rows.items()
    ]
    table = RecordedArray(step=-1, path="input", name="req_to_token", array=TABLE)
    return Trace(ended=End(how=Termination.DONE), seen=(table, *arrays))


def said(judge: Judge, record: Trace) -> list[tuple[Status, str]]:
    verdicts = judge(CASE, record)
    return [(v.status, v.where) for v in (verdicts if isinstance(verdicts, tuple) else (verdicts,))]


@pytest.mark.parametrize("oracle", [history, kv_reads, attributes], ids=lambda module: module.ORACLE)
def test_nothing_recorded_is_unknown(oracle: Any) -> None:
    [(status, _)] = said(oracle.judge, trace())
    assert status is Status.UNKNOWN
    assert oracle.judge not in asked(CASE, trace())


def test_what_differs_after_another_history_fails_by_name() -> None:
    arrays: dict[str, Any] = {"compared": 7, "launches": 0}
    assert said(history.judge, trace(history=arrays)) == [(Status.PASS, "")]
    arrays |= {"attn_backends.1.kv_indptr": [[2, 0]], "attn_backends.1.kv_indptr.values": [[4.0, 9.0]]}
    arrays |= {"output logits": [[1, 3]], "output logits.values": [[0.5, 0.25]], "kv": [11, 12]}
    record = trace(history=arrays)
    wheres = ["attn_backends.kv_indptr", "output logits", "KV values"]
    assert said(history.judge, record) == [(Status.FAIL, where) for where in wheres]
    [first, *_] = history.judge(CASE, record)
    assert "attn_backends.1.kv_indptr[2,0] is read and is 4; after another history it is 9" in first.detail
    # A padded row's token is picked by counts that may be any; a real row's is not, nor was it in earlier releases.
    layers = replace(CASE, setup=replace(CASE.setup, runner="multi_layer"))
    for row, release, status in ((3, "0.5.15", Status.PASS), (2, "0.5.15", Status.FAIL), (3, "0.5.14", Status.FAIL)):
        picked = trace(history={"compared": 7, "runners.0.buffers.select_index": [[row, 0]]})
        [verdict] = history.judge(layers, replace(picked, facts={"sglang": release}))
        wants = ("", ("select_index",)) if status is Status.PASS else ("runners.buffers.select_index", ())
        assert (verdict.status, verdict.where, verdict.stale) == (status, *wants)
    # A padded row's parents are read for no state in Mamba2's kernel alone.
    stale = {"compared": 7, "attn_backend.linear_attn_backend.retrieve_parent_token_list.3": [[3, 1]]}
    for family, status in (("nemotron_h", Status.PASS), ("qwen3_next", Status.FAIL)):
        trees = replace(CASE, setup=replace(CASE.setup, runner="verify", family=family))
        [verdict] = history.judge(trees, replace(trace(history=stale), facts={"sglang": "0.5.23"}))
        assert verdict.status is status
    # Of these another oracle knows what must stand there.
    known = trace(history={"compared": 7, "seq_lens": [[3, 0]]}, neutral={"seq_lens": 1})
    assert said(history.judge, known) == [(Status.PASS, "")]
    known = trace(history={"compared": 7, "attn_backend.cuda_graph_kv_indices": [[3, 0]]}, metadata={"kv_indices": 1})
    assert said(history.judge, known) == [(Status.PASS, "")]
    later = trace(history={"compared": 7, "window_list.1.kv_indices": [[3, 0]]}, metadata={"kv_indices": 1})
    assert said(history.judge, later) == [(Status.FAIL, "window_list.kv_indices")]


@pytest.mark.parametrize("lacking", [1, -2])
def test_launches_that_depend_on_what_ran_before_fail(lacking: int) -> None:
    [verdict] = history.judge(CASE, trace(history={"compared": 7, "launches": lacking}))
    assert (verdict.status, verdict.where) == (Status.FAIL, "number of launches")
    assert f"In step 1 {abs(lacking)} launches more or less took place after another history" in verdict.detail


def test_a_buffer_without_a_place_that_differs_is_right() -> None:
    assert said(history.judge, trace(history={"compared": 7, "num_tokens": []})) == [(Status.PASS, "")]


def test_reads_are_held_to_the_request_table() -> None:
    assert said(kv_reads.judge, trace(reads={"0": READ, "0.partly": []})) == [(Status.PASS, "")]
    foreign = int(TABLE[6, 0])
    assert foreign not in READ
    for slots, where in ((READ[1:], "a slot is not read"), (np.append(READ, foreign), "a slot is read")):
        assert said(kv_reads.judge, trace(reads={"0": np.sort(slots)})) == [(Status.FAIL, where)]
    partly = trace(reads={"0": READ, "0.partly": READ[:1]})
    assert said(kv_reads.judge, partly) == [(Status.FAIL, "a slot is read in part")]


@pytest.mark.parametrize(
    ("bs", "said_of_it"), [(4, (Status.PASS, "")), (3, (Status.FAIL, "a reserved slot is read without padding"))]
)
def test_reserved_slots_are_read_for_padding_alone(bs: int, said_of_it: tuple[Status, str]) -> None:
    assert len(CASE.steps[LAST].requests) == 3
    record = trace(reads={"0": READ, "0.reserved": [0]}, launch={"bs": [bs]})
    assert said(kv_reads.judge, record) == [said_of_it]
    assert said(kv_reads.judge, trace(reads={"0": READ, "0.reserved": []}, launch={"bs": [bs]})) == [(Status.PASS, "")]


def test_what_a_call_leaves_changed_fails_unless_it_is_about_that_call() -> None:
    def changed(**names: str) -> Trace:
        words = {f"runner.{name}": np.frombuffer(text.encode(), dtype=np.uint8) for name, text in names.items()}
        return trace(attributes={"compared": 5, **words})

    assert said(attributes.judge, changed()) == [(Status.PASS, "")]
    assert said(attributes.judge, changed(raw_bs="1 -> 3")) == [(Status.PASS, "")]
    assert said(attributes.judge, changed(topk="2 -> 1", raw_bs="1 -> 3")) == [(Status.FAIL, "topk")]
    [verdict] = attributes.judge(CASE, changed(topk="2 -> 1"))
    assert "leaves runner.topk 1; before it was 2" in verdict.detail


def test_what_a_method_reads_and_nothing_makes_fails() -> None:
    compared = trace(attributes={"compared": 5})
    assert said(attributes.judge, compared) == [(Status.PASS, "")]
    for name, seen in (("Worker.gpu_id", (Status.FAIL, "never made: gpu_id")), ("TpModelWorker.tp_rank", PASSED)):
        absent = RecordedArray(step=-1, path="unmade", name=name, array=np.asarray(1))
        assert said(attributes.judge, replace(compared, seen=(*compared.seen, absent))) == [seen]
    # A case that no graph runs has them as well: with nothing of it unmade it is right, and says so.
    looked = replace(compared, seen=(RecordedArray(step=-1, path="unmade", name="compared", array=np.asarray(1)),))
    assert said(attributes.judge, looked) == [PASSED]
    assert said(attributes.judge, replace(compared, seen=()))[0][0] is Status.UNKNOWN


def test_real_rows_of_a_buffer_that_no_family_names_are_held_to_the_batchs_field() -> None:
    field = {"mrope_positions": [[1, 2, 3]] * 3}
    assert said(staged.judge, trace(field=field, staged=field)) == [(Status.PASS, "")]
    stale = {"mrope_positions": [[1, 2, 3], [1, 2, 3], [1, 2, 9]]}
    assert said(staged.judge, trace(field=field, staged=stale)) == [(Status.FAIL, "real rows of mrope_positions")]
