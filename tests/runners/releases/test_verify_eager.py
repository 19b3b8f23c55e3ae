"""Verify without a graph in a padded batch: the oracle on records made by hand, and every installed release."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import metadata_once, verified
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target, setup_problems
from repro.cases.release_list import NEWEST
from repro.cases.releases import expected, release_order
from repro.traces.finding import Status
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from repro.upstream.fixes import SEEDS
from runners.engines.standins import draft_worker
from runners.processes.pool import Pool
from tests.builders.cases import failures, statuses
from tests.builders.planted import planted
from tests.builders.toy_traces import changed

SETUP = Setup(
    runner="verify_eager", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=6, context_len=64
)
THREE = Step(requests=tuple(Request(slot=slot, seq_len=9 + slot, data=slot) for slot in (1, 5, 3)))
FULL = Step(requests=tuple(Request(slot=slot, seq_len=20 + slot, data=slot) for slot in (4, 2)))
CASE = Case(setup=SETUP, steps=(THREE, FULL))
PADDED_AS_CHAIN = codec.read(SEEDS / "verify-tree-padded-as-chain.json")
SEED = codec.read(SEEDS / "multi-layer-verify-without-metadata.json")
TREE = replace(SETUP, runner="verify_eager_tree", topk=2, num_draft_tokens=7)


def test_a_draft_worker_that_is_there_already_refuses_a_rank_in_anothers_place() -> None:
    class DraftWorker:
        def __init__(self, server_args: object, gpu_id: int, moe_dp_rank: int, nccl_port: int) -> None:
            raise AssertionError("it is there already")

    worker = object()
    construct = draft_worker.constructor(DraftWorker, worker, {"gpu_id": 0, "moe_dp_rank": 0, "nccl_port": 15000})
    assert construct(None, 0, 0, nccl_port=15000) is worker
    with pytest.raises(ValueError, match=r"handed .*'moe_dp_rank': 15000, 'nccl_port': 0"):
        construct(None, 0, 15000, 0)
    with pytest.raises(TypeError, match="nccl_port"):
        construct(None, 0, 0)


def sound() -> Trace:
    """Padding, then metadata, then two layers of attention, in a step that is padded and in one that is not."""
    seen = []
    for step, requests in enumerate((4, 2)):
        shape = {"tokens": [4 * requests], "requests": [requests]}
        columns: dict[str, dict[str, list[int]]] = {
            "padding": {"at": [0], **shape},
            "metadata": {"at": [1], **shape},
            "attention": {"at": [2, 3], **{name: 2 * values for name, values in shape.items()}},
        }
        columns["attention"] |= {f"planned_{name}": 2 * values for name, values in shape.items()}
        seen += [
            RecordedArray(step=step, path=path, name=name, array=np.array(values))
            for path, names in columns.items()
            for name, values in names.items()
        ]
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def told(trace: Trace) -> tuple[Status, str]:
    verdict = metadata_once.judge(CASE, trace)
    return verdict.status, verdict.where


def test_metadata_made_once_after_padding_passes() -> None:
    assert told(sound()) == (Status.PASS, "")
    assert overall(judge_all(CASE, sound())) is Status.PASS


def test_without_attention_it_does_not_know() -> None:
    assert told(Trace(ended=End(how=Termination.DONE))) == (Status.UNKNOWN, "no attention recorded")


BY_BATCH = "batch padded to the busiest"


@pytest.mark.parametrize(
    "name", ["global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu", "gathered", "own", BY_BATCH]
)
def test_layers_are_told_of_the_tokens_of_all_ranks(name: str) -> None:
    told_of = {"padded to the busiest": [1], "global_num_tokens_gpu": [16, 16], "gathered": [32], "own": [16]}
    told_of |= {"global_num_tokens_for_logprob_gpu": [12, 16], BY_BATCH: [1]}
    seen = (RecordedArray(step=0, path="ranks", name=key, array=np.array(value)) for key, value in told_of.items())
    trace = replace(sound(), seen=(*sound().seen, *seen))
    assert told(trace) == (Status.PASS, "")
    assert told(changed(trace, 0, "ranks", name, lambda array: array - 1)) == (Status.FAIL, metadata_once.RANKS)


def test_metadata_made_before_padding() -> None:
    trace = changed(sound(), 0, "metadata", "at", lambda _: np.array([-1]))
    trace = changed(trace, 0, "metadata", "tokens", lambda _: np.array([12]))
    assert told(trace) == (Status.FAIL, metadata_once.NONE)
    assert "made for 12 tokens, before the batch is padded to 16" in metadata_once.judge(CASE, trace).detail


def test_no_metadata_at_all() -> None:
    for name in ("at", "tokens", "requests"):
        trace = changed(sound(), 1, "metadata", name, lambda array: array[:0])
    trace = changed(trace, 1, "metadata", "at", lambda array: array[:0])
    assert told(trace) == (Status.FAIL, metadata_once.NONE)
    assert "an earlier batch's" in metadata_once.judge(CASE, trace).detail


def test_a_batch_of_several_ranks_that_nobody_pads() -> None:
    trace = replace(sound(), seen=tuple(seen for seen in sound().seen if seen.path != "padding"))
    assert told(trace) == (Status.FAIL, metadata_once.UNPADDED)


def test_metadata_made_twice() -> None:
    trace = changed(sound(), 0, "metadata", "at", lambda _: np.array([1, 1]))
    assert told(trace) == (Status.FAIL, metadata_once.AGAIN)


def given_and_got(**changed: object) -> Trace:
    """A request whose tree of four tokens has the KV slots 20 to 23, with what came of it."""
    arrays: dict[str, dict[str, object]] = {
        "input": {"out_cache_loc": [[20, 21, 22, 23]]},
        "eager": {"kv_slots": [0, 20, 21, 22, 23], "logits": np.ones((4, 2), dtype=np.float32)},
        "reference": {"logits": np.ones((1, 8)), "logits.bound": np.full((1, 8), 0.1), "logits.norm": np.ones((1, 4))},
    }
    arrays["eager"].update(changed)
    seen = (
        RecordedArray(step=0, path=path, name=name, array=np.asarray(values))
        for path, names in arrays.items()
        for name, values in names.items()
    )
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def test_a_pass_gives_its_tokens_what_the_reference_says_and_writes_their_slots() -> None:
    case = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=9, data=1),)),))

    def wheres(**changed: object) -> list[str]:
        return [verdict.where for verdict in verified.judge(case, given_and_got(**changed))]

    assert [verdict.status for verdict in verified.judge(case, given_and_got())] == [Status.PASS]
    assert wheres(kv_slots=[20, 21, 22]) == [verified.SLOTS]
    assert wheres(kv_slots=[20, 21, 22, 23, 40]) == [verified.SLOTS]
    assert wheres(logits=np.ones((1, 8), dtype=np.float32)) == [verified.ROWS]
    assert wheres(logits=np.full((4, 2), 1.2, dtype=np.float32)) == [verified.OUTPUT]
    nothing = Trace(ended=End(how=Termination.DONE), seen=())
    assert [verdict.status for verdict in verified.judge(case, nothing)] == [Status.UNKNOWN]


@pytest.mark.parametrize("name", ["planned_tokens", "planned_requests"])
def test_metadata_of_another_shape(name: str) -> None:
    trace = changed(sound(), 0, "attention", name, lambda array: array - 1)
    assert told(trace) == (Status.FAIL, metadata_once.SHAPES)


@pytest.mark.parametrize("path", ["padding", "attention"])
def test_requests_that_the_tokens_do_not_make_up(path: str) -> None:
    def fewer(array: Array) -> Array:
        return array - 1

    trace = changed(sound(), 0, path, "requests", fewer)
    assert told(trace) == (Status.FAIL, metadata_once.REQUESTS)


def test_trees_have_a_runner_of_their_own() -> None:
    chain = replace(SETUP, runner="verify_eager_tree")
    assert setup_problems(TREE) == setup_problems(SETUP) == []
    assert setup_problems(chain) == ["setup: the verify_eager_tree runner has topk above 1 only"]
    assert "topk 1 only" in setup_problems(replace(TREE, runner="verify_eager"))[0]


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    return pool.run(CASE)


def test_the_record_is_complete_and_the_batch_padded(trace: Trace) -> None:
    for step, (count, busiest) in enumerate(((3, 4), (2, 2))):
        assert trace.path(step, "input")["busiest"] == busiest
        assert len(trace.path(step, "input")["seq_lens"]) == count
        padding, attention = trace.path(step, "padding"), trace.path(step, "attention")
        assert (padding["tokens"].tolist(), padding["requests"].tolist()) == ([4 * busiest], [busiest])
        assert attention.keys() == {"at", "tokens", "requests", "planned_tokens", "planned_requests"}
        assert attention["tokens"].tolist() == [4 * busiest], "of the one layer"


def test_a_tree_is_padded_as_if_it_were_a_chain(pool: Pool) -> None:
    """Until it is fixed: the batch is said to hold tokens // (num_steps + 1) requests."""
    example = Case(setup=TREE, steps=(FULL,))
    trace = pool.run(example)
    if expected(PADDED_AS_CHAIN.about, trace.facts["sglang"]) != "metadata_once":
        assert statuses(example, trace)["metadata_once"] is Status.PASS
        assert [int(trace.path(0, "padding")[name].item()) for name in ("tokens", "requests")] == [14, 2]
        return
    assert failures(example, trace)["metadata_once"] == {metadata_once.REQUESTS}
    padding = trace.path(0, "padding")
    assert (padding["tokens"].item(), padding["requests"].item()) == (14, 3)


def test_workers_of_several_layers_make_no_metadata(pool: Pool) -> None:
    """Until it is fixed: it is made early where #26244 is not fixed, and not at all where it is."""
    example = Case(setup=replace(SETUP, runner="verify_eager_multi_layer"), steps=(THREE,))
    trace = pool.run(example)
    release = trace.facts["sglang"]
    outcome = expected(SEED.about, release)
    if outcome not in ("ended", "metadata_once"):
        assert statuses(example, trace)["metadata_once"] is Status.PASS
        return
    if outcome == "ended":
        assert failures(example, trace) == {"ended": {"raised RuntimeError in verify"}}
        assert "negative dimension" in trace.ended.detail
        return
    assert failures(example, trace)["metadata_once"] == {metadata_once.NONE}
    made = trace.path(0, "metadata")
    assert (made["tokens"].tolist() if made else []) == (
        [] if release_order(release) >= release_order("0.5.13") else [12]
    )


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_the_reference_is_asked_about_the_tokens_that_the_pass_was_given(newest: Pool) -> None:
    file, line = "sglang/srt/speculative/eagle_worker_common.py", "logits_output = forward_batch_output.logits_output"
    overwritten = f"{line}; verify_input.draft_token.fill_(1 << 40)"
    newest.change(planted(Target(NEWEST, "emulated"), file, "run_eagle_verify", line, overwritten))
    assert statuses(CASE, newest.run(CASE))[verified.ORACLE] is Status.PASS
