"""The draft runner: what its record holds to the last shape, and setups that conformance does not try."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from repro.cases.case import Case, Setup, Target
from repro.cases.layout import req_to_token
from repro.cases.release_list import NEWEST
from repro.traces.trace import Array, Termination, Trace
from runners.processes.pool import Pool
from runners.targets.environments import bare_loop
from tests.builders.cases import FULL, PADDED, PAIR, SINGLE, Batch, case_of, failures, setup_of
from tests.builders.known_failures import may_fail, must_fail

SETUP = setup_of("draft")
FLASHINFER: dict[str, object] = {"backend": "flashinfer", "dtype": "float16", "head_dim": 64}
OUTPUTS = ("tokens", "parents", "scores_index")


def case(*batches: Batch, **changes: Any) -> Case:
    return case_of(setup_of("draft", **changes), *batches)


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    """The record of a full bucket, a padded one, and the two smaller ones."""
    return pool.run(case())


def shapes(setup: Setup, batch: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes that repro/traces/paths.py promises of every step: path -> name -> shape. -1: any size from 1 on."""
    steps, topk, hidden = setup.num_steps, setup.topk, setup.hidden_size

    def rows(count: int) -> dict[str, tuple[int, ...]]:
        per_request = {"seq_lens": (), "req_pool_indices": (), "out_cache_loc": (topk * steps,)}
        branches = dict.fromkeys(("positions", "topk_p", "topk_index"), (topk,))
        return {name: (count, *rest) for name, rest in (per_request | branches | {"hidden_states": (hidden,)}).items()}

    flat = {"positions": (batch * topk,), "out_cache_loc": (batch * topk * steps,)}
    caller = rows(batch) | flat | {"batch_size": (), "seq_lens_cpu": (batch,), "seq_lens_sum": ()}
    # A tree of num_draft_tokens - 1 tokens behind the root; parents of all but the last draft step.
    drafts = {
        "tokens": (batch, setup.num_draft_tokens - 1),
        "scores_index": (batch, setup.num_draft_tokens - 1),
        "parents": (batch, topk * (steps - 1) + 1),
        "kv_slots": (-1,),
    }
    return {
        "input": rows(batch),
        "before": caller,
        "launch": rows(setup.max_bs) | {"seq_lens_cpu": (setup.max_bs,), "bs": (), "raw_bs": ()},
        "metadata": {"kv_indptr": (steps, -1), "kv_indices": (steps, -1)},
        "graph": drafts,
        "after_graph": caller,
        "eager": drafts | {"kv_same": ()},
        # sglang leaves the last draft step's in these two.
        "after_eager": caller | {"out_cache_loc": (-1,), "hidden_states": (-1, hidden)},
        "guard": {"intact": ()},
    }


def test_the_record_is_complete(trace: Trace) -> None:
    assert len(trace.seen) == len({(s.step, s.path, s.name) for s in trace.seen}), "a name is used twice"
    for number, step in enumerate(case().steps):
        expected = shapes(SETUP, len(step.requests))
        assert trace.paths(number) >= expected.keys()
        for path, names in expected.items():
            seen = trace.path(number, path)
            assert seen.keys() == names.keys(), path
            for name, shape in names.items():
                got = seen[name].shape
                assert len(got) == len(shape), (number, path, name, got)
                assert all(a == b or (b < 0 < a) for a, b in zip(got, shape, strict=True)), (number, path, name, got)
    table = trace.get(-1, "input", "req_to_token")
    assert table is not None
    np.testing.assert_array_equal(table, req_to_token(SETUP))
    neutral = trace.path(-1, "neutral")
    assert neutral.keys() == trace.path(0, "launch").keys() - {"bs", "raw_bs"}
    assert {name: int(value) for name, value in neutral.items() if value} == {"seq_lens": 1, "seq_lens_cpu": 1}


def test_the_record_says_what_was_asked_for(trace: Trace) -> None:
    for number, step in enumerate(case().steps):
        count = len(step.requests)
        launch, inputs = trace.path(number, "launch"), trace.path(number, "input")
        assert (int(launch["raw_bs"]), int(launch["bs"])) == (count, SETUP.bucket(count))
        assert inputs["seq_lens"].tolist() == [request.seq_len for request in step.requests]
        assert inputs["req_pool_indices"].tolist() == [request.slot for request in step.requests]
        for name, array in inputs.items():
            np.testing.assert_array_equal(launch[name][:count], array, err_msg=name)
        # The draft wrote where it was told to, and nothing of it was lost on rows that were equal before.
        drafted = inputs["out_cache_loc"].reshape(count, SETUP.topk, SETUP.num_steps)[:, :, : SETUP.num_steps - 1]
        for path in ("graph", "eager"):
            written = trace.path(number, path)["kv_slots"]
            assert set(written.tolist()) - {0} == set(drafted.flatten().tolist()), path
        tokens = trace.path(number, "graph")["tokens"]
        assert set(tokens.flatten().tolist()) <= set(range(SETUP.vocab_size))
        assert int(trace.path(number, "guard")["intact"]) > 1000


@pytest.fixture(scope="module")
def altered(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(
        target, session="tests.builders.altered_session", log=tmp_path_factory.mktemp("altered") / "log"
    ) as opened:
        yield opened


def test_a_request_drafts_the_same_in_another_slot(pool: Pool) -> None:
    """Elsewhere in memory, and nowhere else."""
    table = req_to_token(SETUP)
    moved = ((6, 9, 1), (5, 17, 2), (1, 5, 3), (2, 30, 4))
    trace = pool.run(case(FULL, moved))
    for name in OUTPUTS:
        np.testing.assert_array_equal(trace.path(0, "graph")[name], trace.path(1, "graph")[name])
    for number, slots in enumerate(((1, 2, 3, 4), (6, 5, 1, 2))):
        written = trace.path(number, "graph")["kv_slots"]
        assert set(written.tolist()) <= {0, *table[list(slots)].flatten().tolist()}


def test_a_longer_prefix_and_other_data_draft_otherwise(pool: Pool) -> None:
    lengths = ((1, 30, 1), (2, 5, 2), (3, 17, 3), (4, 9, 4))
    data = ((1, 9, 11), (2, 17, 12), (3, 5, 13), (4, 30, 14))
    trace = pool.run(case(FULL, lengths, data))
    drafts: list[Array] = [trace.path(number, "graph")["tokens"] for number in range(3)]
    assert not np.array_equal(drafts[0], drafts[1])
    assert (drafts[0] != drafts[2]).any(axis=1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"topk": 1},
        {"topk": 1, "page_size": 4},
        {"dtype": "float16"},
        {"num_heads": 4, "num_kv_heads": 2, "kv_splits": 3},
        {"topk": 4, "num_steps": 4, "num_draft_tokens": 9, "capture_bs": (2, 4), "hidden_size": 64, "vocab_size": 500},
        FLASHINFER,
        FLASHINFER | {"dtype": "bfloat16", "num_heads": 4, "num_kv_heads": 1, "topk": 1},
    ],
    ids=str,
)
def test_other_setups(changes: dict[str, object], pool: Pool) -> None:
    varied = case(FULL, PADDED, SINGLE, **changes)
    trace = pool.run(varied)
    assert trace.ended.how is Termination.DONE, trace.ended
    known = may_fail("draft", varied.setup.backend, trace.facts["sglang"], trace.facts["engine"])
    assert must_fail("draft", varied.setup.backend, trace.facts["sglang"]) <= failures(varied, trace).keys() <= known


def test_branches_on_pages(pool: Pool) -> None:
    """A release that does not support them says so, in its words."""
    paged = case(FULL, PAIR, page_size=4)
    trace = pool.run(paged)
    if trace.ended.how is Termination.UNSUPPORTED:
        assert "speculative_eagle_topk > 1 with page_size > 1" in trace.ended.what
        assert pool.target.sglang != NEWEST
    else:
        assert trace.ended.how is Termination.DONE, trace.ended
        assert failures(paged, trace) == {}


def test_layers_are_as_wide_as_configured(altered: Pool) -> None:
    """On either engine: 16 is no multiple of 32, to which sglang rounds up on a CPU."""
    trace = altered.run(case(FULL, hidden_size=16))
    assert trace.ended.how is Termination.DONE, trace.ended
    sizes = json.loads(trace.facts["sizes"])
    assert sizes["model.layers.0.mlp.gate_up_proj.weight"] == [2 * 16, 16]
    assert sizes["model.layers.0.mlp.down_proj.weight"] == [16, 16]


@pytest.mark.parametrize(("changes", "why"), [({"dtype": "bfloat16"}, "no bfloat16 arithmetic")], ids=str)
def test_what_the_engine_cannot_do_is_unsupported(
    changes: dict[str, object], why: str, pool: Pool, target: Target
) -> None:
    if target.engine != "emulated":
        pytest.skip("this test is for the emulated engine")
    ended = pool.run(case(FULL, **changes)).ended
    assert ended.how is Termination.UNSUPPORTED
    assert why in ended.what


def test_the_bare_loop_runs_what_steps_run(target: Target) -> None:
    """A batch beyond all buckets by eager alone, an idle one by its graph: a loop that ends there is no measure."""
    beyond = tuple((slot, 9, slot) for slot in range(1, 6))
    with Pool(target, variables=bare_loop()) as pool:
        trace = pool.run(case(SINGLE, beyond, (), PAIR))
    assert trace.ended.how == Termination.DONE, trace.ended
    assert trace.seconds["bare"] > 0
