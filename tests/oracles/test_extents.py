"""Lengths of a batch's tensors: the oracle on records made by hand, and what a session records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import extents
from repro.cases.case import Case, Request, Setup, Step
from repro.traces.finding import Status
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.only_verdict import only
from tests.builders.toy_traces import changed

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=5)
CASE = Case(
    setup=SETUP,
    steps=tuple(
        Step(requests=tuple(Request(slot=slot, seq_len=9, data=slot) for slot in range(1, 1 + count)))
        for count in (4, 1, 3)
    ),
)
BUCKETS = (4, 1, 4)


def trace(*, captured: dict[str, list[list[int]]], planned: dict[str, list[int]], wide: int = 8) -> Trace:
    """planned: how long a field is in each step."""

    def seen(step: int, path: str, name: str, value: object) -> RecordedArray:
        return RecordedArray(step=step, path=path, name=name, array=np.array(value))

    every = [seen(-1, "extents_captured", name, pairs) for name, pairs in captured.items()]
    every += [seen(step, "extents", name, counts[step]) for name, counts in planned.items() for step in range(3)]
    every += [seen(step, "launch", "bs", bs) for step, bs in enumerate(BUCKETS)]
    every += [seen(-1, "widths_captured", "positions", wide), seen(-1, "widths_captured", "seq_lens", 4)]
    every += [seen(0, "widths", name, 8) for name in ("positions", "seq_lens")]
    # The last release whose graphs have lengths in 32 bits.
    return Trace(ended=End(how=Termination.DONE), seen=tuple(every), facts={"sglang": "0.5.13.post1"})


SOUND_CAPTURED = {"positions": [[1, 2], [2, 4], [4, 8]], "spec_info.custom_mask": [[1, 9], [2, 9], [4, 9]]}
SOUND_PLANNED = {"positions": [8, 2, 6], "seq_lens": [4, 1, 4], "out_cache_loc": [4, 4, 4]}


def test_lengths_of_the_batch_its_bucket_or_the_largest_one_pass() -> None:
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)
    assert only(extents.judge, CASE, sound).status is Status.PASS


def test_batches_that_count_branches_pass() -> None:
    captured = {"seq_lens": [[2, 2], [4, 4], [8, 8]], "spec_info.topk_p": [[2, 1], [4, 2], [8, 4]]}
    planned = {"seq_lens": [8, 2, 8], "spec_info.topk_p": [4, 1, 4]}
    assert only(extents.judge, CASE, trace(captured=captured, planned=planned)).status is Status.PASS


@pytest.mark.parametrize("pairs", [[[1, 3], [2, 5], [4, 8]], [[1, 8], [2, 8], [4, 8]], [[1, 1], [2, 3], [4, 8]]])
def test_a_slice_of_a_capture_that_is_one_off_or_whole(pairs: list[list[int]]) -> None:
    verdict = only(extents.judge, CASE, trace(captured={"positions": pairs}, planned=SOUND_PLANNED))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of positions, captured")


@pytest.mark.parametrize("counts", [[8, 3, 7], [7, 1, 5], [8, 1, 8], [4, 2, 3]])
def test_a_slice_of_a_call_that_is_one_off_or_of_another_kind_each_time(counts: list[int]) -> None:
    verdict = only(extents.judge, CASE, trace(captured=SOUND_CAPTURED, planned={"positions": counts}))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of positions")


def test_a_call_that_has_other_entries_for_a_request_than_captures() -> None:
    verdict = only(extents.judge, CASE, trace(captured=SOUND_CAPTURED, planned={"positions": [4, 1, 4]}))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of positions")


def test_parallel_layers_are_told_how_many_tokens_are_captured() -> None:
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)
    for count, status in ((8, Status.PASS), (4, Status.FAIL), (-1, Status.FAIL)):
        recorded = RecordedArray(step=-1, path="tokens_captured", name="own", array=np.array([[8, count]]))
        assert only(extents.judge, CASE, replace(sound, seen=(*sound.seen, recorded))).status is status


def test_and_how_many_all_ranks_have() -> None:
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)
    for gathered, status in ((16, Status.PASS), (8, Status.FAIL)):
        recorded = RecordedArray(step=-1, path="tokens_captured", name="gathered", array=np.array([[8, gathered]]))
        assert only(extents.judge, CASE, replace(sound, seen=(*sound.seen, recorded))).status is status


def test_a_captured_batch_counts_its_tokens() -> None:
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)
    for name in ("extend_num_tokens", "mrope_positions"):
        for count, status in ((8, Status.PASS), (4, Status.FAIL)):
            counts = np.array([[2, 2], [8, count]])
            recorded = RecordedArray(step=-1, path="counts_captured", name=name, array=counts)
            assert only(extents.judge, CASE, replace(sound, seen=(*sound.seen, recorded))).status is status


def test_integers_that_only_graphs_have_in_32_bits() -> None:
    verdict = only(extents.judge, CASE, trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED, wide=4))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of positions, integers")
    assert "int32" in verdict.detail
    later = replace(trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED), facts={"sglang": "0.5.14"})
    assert only(extents.judge, CASE, later).where == "length of seq_lens, integers"


def test_calls_without_a_graph_and_lengths_of_sequences_are_left_out() -> None:
    """A step that no graph is launched for, and a mask, which is as long as its sequences."""
    odd = {"positions": [8, 5, 6], "spec_info.custom_mask": [70, 11, 33]}
    verdict = only(extents.judge, CASE, trace(captured=SOUND_CAPTURED, planned=odd))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of positions")
    unlaunched = changed(trace(captured=SOUND_CAPTURED, planned=odd), 1, "launch", "bs", lambda _: None)
    assert only(extents.judge, CASE, unlaunched).status is Status.PASS


def test_the_calls_of_a_step_are_told_apart() -> None:
    """A second plan of a step has lengths of its own, and is held to those of other steps."""
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)

    def second(*counts: int) -> Trace:
        more = (
            RecordedArray(step=s, path="extents.1", name="seq_lens", array=np.array(n)) for s, n in enumerate(counts)
        )
        return replace(sound, seen=(*sound.seen, *more))

    assert only(extents.judge, CASE, second(8, 2, 8)).status is Status.PASS
    verdict = only(extents.judge, CASE, second(8, 2, 7))
    assert (verdict.status, verdict.where) == (Status.FAIL, "length of seq_lens")
    assert "In step 2 seq_lens is planned with 7 entries: a batch of 3 in a bucket of 4" in verdict.detail


def test_a_session_tells_of_captures_and_of_calls(pool: Pool) -> None:
    recorded = pool.run(CASE)
    assert {verdict.status for verdict in extents.judge(CASE, recorded)} == {Status.PASS}
    positions: Array = recorded.path(-1, "extents_captured")["positions"]
    assert positions.tolist() == [[1, 2], [2, 4], [4, 8]]
    assert recorded.path(0, "extents") and recorded.path(0, "widths")
    assert recorded.path(-1, "counts_captured")["mrope_positions"].tolist() == [[2, 2], [4, 4], [8, 8]]


def test_the_ranks_tokens_on_the_host_are_those_of_the_bucket_or_of_the_batch() -> None:
    """At capture, and where a graph is planned; those with logits as many as the graph gives of them."""
    ranked = replace(CASE, setup=replace(CASE.setup, runner="draft_extend", dp_attention=True))
    sound = trace(captured=SOUND_CAPTURED, planned=SOUND_PLANNED)
    gave = [
        RecordedArray(step=0, path=path, name="rows of a request", array=np.array(1)) for path in ("graph", "logits")
    ]
    width = SETUP.num_draft_tokens
    for step, path, name, ranks, status in (
        (-1, "ranks_captured", "global_num_tokens_cpu", [[1, width, width]], Status.PASS),
        (-1, "ranks_captured", "global_num_tokens_cpu", [[2, width, width]], Status.FAIL),
        (-1, "ranks_captured", "global_num_tokens_for_logprob_cpu", [[2, 2, 2]], Status.PASS),
        (-1, "ranks_captured", "global_num_tokens_for_logprob_cpu", [[2, 2 * width, 2 * width]], Status.FAIL),
        (2, "gathered_on_host", "global_num_tokens_cpu", [4 * width, 4 * width], Status.PASS),
        (2, "gathered_on_host", "global_num_tokens_cpu", [3 * width, 0], Status.PASS),
        (2, "gathered_on_host", "global_num_tokens_cpu", [4 * width, 0], Status.FAIL),
        (2, "gathered_on_host", "global_num_tokens_for_logprob_cpu", [4 * width, 4 * width], Status.FAIL),
    ):
        recorded = RecordedArray(step=step, path=path, name=name, array=np.array(ranks))
        verdict = only(extents.judge, ranked, replace(sound, seen=(*sound.seen, *gave, recorded)))
        assert verdict.status is status, (name, ranks)
        assert status is Status.PASS or name in verdict.where
