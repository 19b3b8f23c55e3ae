"""The conformance test: what every installed release must show, whichever adapter drives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from only_verdict import wheres

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.layout import req_to_token
from repro.cases.releases import release_order
from repro.traces.finding import Status
from repro.traces.trace import Array, How, Trace
from runners.processes.pool import Pool
from tests.altered_session import OTHER_SLOT, PARTS, SHIFT
from tests.same_bits import bits

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)
OUTPUTS = ("tokens", "parents", "scores_index")
# The releases in which a batch that does not fill its bucket leaves stale rows behind it (#23037).
STALE_UNTIL = release_order("0.5.10.post1")
STALE = {
    "slot0_padding": {
        f"padded rows of {name}" for name in ("hidden_states", "req_pool_indices", "topk_index", "topk_p")
    },
    "kv_indices": {"segment of a padded row"},
}
FLASHINFER: dict[str, object] = {"backend": "flashinfer", "dtype": "float16", "head_dim": 64}
# The releases that refuse branches on pages of more than one token.
UNPAGED_UNTIL = release_order("0.5.12.post1")


def step(*rows: tuple[int, int, int]) -> Step:
    """A call with these requests: slot, seq_len, data."""
    return Step(requests=tuple(Request(slot=slot, seq_len=seq_len, data=data) for slot, seq_len, data in rows))


FULL = step((1, 9, 1), (2, 17, 2), (3, 5, 3), (4, 30, 4))
PADDED = step((5, 7, 5), (2, 11, 6), (3, 21, 7))
ONE = step((6, 1, 8))
TWO = step((4, 33, 9), (1, 2, 1))


def case(*steps: Step, **changes: Any) -> Case:
    return Case(setup=replace(SETUP, **changes), steps=steps)


def failures(one: Case, trace: Trace) -> dict[str, set[str]]:
    return wheres(judge_all(one, trace))


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    """Of a full bucket, a padded one, and the two smaller ones."""
    return pool.run(case(FULL, PADDED, ONE, TWO))


@pytest.fixture(scope="module")
def stale(trace: Trace) -> bool:
    """Whether this release has #23037."""
    return release_order(trace.facts["sglang"]) <= STALE_UNTIL


def test_it_runs_to_the_end(trace: Trace, target: Target) -> None:
    assert trace.ended.how is How.DONE, trace.ended
    assert trace.facts.keys() == {"sglang", "adapter", "adapted", "engine", "torch", "triton", "python", "device"}
    assert all(trace.facts.values())
    assert (trace.facts["engine"], trace.facts["adapted"]) == (target.engine, "yes")
    assert trace.facts["sglang"] == target.sglang or target.is_checkout
    assert trace.seconds.keys() == {"build", "graph", "eager", "record"}
    assert all(seconds > 0 for seconds in trace.seconds.values())


def test_the_oracles_say_what_is_known_of_the_release(trace: Trace, stale: bool) -> None:
    one = case(FULL, PADDED, ONE, TWO)
    verdicts = {v.oracle: v for v in judge_all(one, trace)}
    if stale:
        assert failures(one, trace) == STALE
    else:
        assert failures(one, trace) == {}
        assert overall(verdicts.values()) is Status.PASS
    assert [v for v in verdicts.values() if v.status is Status.UNKNOWN] == []


def test_without_padding_every_release_passes(pool: Pool) -> None:
    one = case(FULL, TWO, ONE)
    verdicts = judge_all(one, pool.run(one))
    assert overall(verdicts) is Status.PASS, verdicts
    assert {v.oracle for v in verdicts if v.status is not Status.PASS} == {"slot0_padding"}


# The record ------------------------------------------------------------------------------------------------------


def shapes(setup: Setup, batch: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """What repro/traces/trace.py promises of every step: path -> name -> shape. -1: any size from 1 on."""
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
    for number, one in enumerate((FULL, PADDED, ONE, TWO)):
        wanted = shapes(SETUP, len(one.requests))
        assert trace.paths(number) - {"reference"} == wanted.keys()
        for path, names in wanted.items():
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
    for number, one in enumerate((FULL, PADDED, ONE, TWO)):
        count = len(one.requests)
        launch, given = trace.path(number, "launch"), trace.path(number, "input")
        assert (launch["raw_bs"], launch["bs"]) == (count, SETUP.bucket(count))
        assert given["seq_lens"].tolist() == [request.seq_len for request in one.requests]
        assert given["req_pool_indices"].tolist() == [request.slot for request in one.requests]
        for name, array in given.items():
            np.testing.assert_array_equal(launch[name][:count], array, err_msg=name)
        # The draft wrote where it was told to, and nothing of it was lost on rows that were equal before.
        drafted = given["out_cache_loc"].reshape(count, SETUP.topk, SETUP.num_steps)[:, :, : SETUP.num_steps - 1]
        for path in ("graph", "eager"):
            written = trace.path(number, path)["kv_slots"]
            assert set(written.tolist()) - {0} == set(drafted.flatten().tolist()), path
        tokens = trace.path(number, "graph")["tokens"]
        assert ((tokens >= 0) & (tokens < SETUP.vocab_size)).all()
        assert int(trace.path(number, "guard")["intact"]) > 1000


# The same again --------------------------------------------------------------------------------------------------


def test_the_same_case_gives_the_same_bits(pool: Pool, trace: Trace) -> None:
    one = case(FULL, PADDED, ONE, TWO)
    other = case(TWO, FULL)
    assert pool.run(other).ended.how is How.DONE
    again = pool.run(one)
    assert bits(again) == bits(trace)
    assert bits(pool.run(one)) == bits(trace)
    fresh = pool.run_fresh(one)
    assert bits(fresh) == bits(trace)
    assert fresh.facts == trace.facts


# Every input matters ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def altered(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(target, session="tests.altered_session", log=tmp_path_factory.mktemp("altered") / "log") as one:
        yield one


def outputs(trace: Trace, number: int, row: int) -> list[list[int]]:
    """What the graph drafted for one request."""
    return [trace.path(number, "graph")[name][row].tolist() for name in OUTPUTS]


@pytest.mark.parametrize("changes", [{}, FLASHINFER], ids=["triton", "flashinfer"])
def test_every_input_reaches_the_result(changes: dict[str, object], altered: Pool) -> None:
    """Rows 0 and 2 are changed in one input at a time; rows 1 and 3 have nothing to do with it."""

    def batch(data: int, part: int) -> Step:
        code = part << SHIFT
        return step((1, 9, data + code), (2, 20, data + 50), (3, 31, data + 100 + code), (4, 6, data + 150))

    datas = (10, 20, 30)
    numbers = [(data, part) for data in datas for part in range(len(PARTS) + 1)]
    trace = altered.run(case(*(batch(data, part) for data, part in numbers), **changes))
    assert trace.ended.how is How.DONE, trace.ended
    reached = dict.fromkeys(PARTS, 0)
    for number, (data, part) in enumerate(numbers):
        base = numbers.index((data, 0))
        name = PARTS[part - 1] if part else ""
        if name not in ("positions", "seq_lens"):  # these two reach the rows behind as well
            assert [outputs(trace, number, row) for row in (1, 3)] == [outputs(trace, base, row) for row in (1, 3)]
        if not name:
            continue
        given = {key: trace.path(number, "input")[key] for key in trace.path(base, "input")}
        changed = {key for key, array in given.items() if not np.array_equal(array, trace.path(base, "input")[key])}
        assert changed == ({name} - {"prefix0", "prefix1"})
        if name == "out_cache_loc":
            # Where drafts are kept changes where they are written, and nothing else.
            written = set(trace.path(number, "graph")["kv_slots"].tolist())
            assert written & set(req_to_token(SETUP)[OTHER_SLOT].tolist())
        reached[name] += sum(outputs(trace, number, row) != outputs(trace, base, row) for row in (0, 2))
    assert [name for name, count in reached.items() if not count] == []


def test_a_request_drafts_the_same_in_another_slot(pool: Pool) -> None:
    """Elsewhere in memory, and nowhere else."""
    table = req_to_token(SETUP)
    moved = step((6, 9, 1), (5, 17, 2), (1, 5, 3), (2, 30, 4))
    trace = pool.run(case(FULL, moved))
    for name in OUTPUTS:
        np.testing.assert_array_equal(trace.path(0, "graph")[name], trace.path(1, "graph")[name])
    for number, slots in enumerate(((1, 2, 3, 4), (6, 5, 1, 2))):
        written = trace.path(number, "graph")["kv_slots"]
        assert set(written.tolist()) <= {0, *table[list(slots)].flatten().tolist()}


def test_a_longer_prefix_and_other_data_draft_otherwise(pool: Pool) -> None:
    lengths = step((1, 30, 1), (2, 5, 2), (3, 17, 3), (4, 9, 4))
    data = step((1, 9, 11), (2, 17, 12), (3, 5, 13), (4, 30, 14))
    trace = pool.run(case(FULL, lengths, data))
    drafts: list[Array] = [trace.path(number, "graph")["tokens"] for number in range(3)]
    assert not np.array_equal(drafts[0], drafts[1])
    assert (drafts[0] != drafts[2]).any(axis=1).all()


# Other setups ----------------------------------------------------------------------------------------------------


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
def test_other_setups(changes: dict[str, object], pool: Pool, stale: bool) -> None:
    one = case(FULL, PADDED, ONE, **changes)
    trace = pool.run(one)
    assert trace.ended.how is How.DONE, trace.ended
    assert failures(one, trace) == (STALE if stale else {})


def test_branches_on_pages(pool: Pool) -> None:
    one = case(FULL, TWO, page_size=4)
    trace = pool.run(one)
    if release_order(trace.facts["sglang"]) <= UNPAGED_UNTIL:
        assert trace.ended.how is How.UNSUPPORTED
        assert "speculative_eagle_topk > 1 with page_size > 1" in trace.ended.what
    else:
        assert trace.ended.how is How.DONE, trace.ended
        assert failures(one, trace) == {}


def test_layers_are_as_wide_as_configured(altered: Pool) -> None:
    """On either engine: 16 is no multiple of 32, to which sglang rounds up on a CPU."""
    trace = altered.run(case(FULL, hidden_size=16))
    assert trace.ended.how is How.DONE, trace.ended
    sizes = json.loads(trace.facts["sizes"])
    assert sizes["model.layers.0.mlp.gate_up_proj.weight"] == [2 * 16, 16]
    assert sizes["model.layers.0.mlp.down_proj.weight"] == [16, 16]


@pytest.mark.parametrize(("changes", "why"), [({"dtype": "bfloat16"}, "no bfloat16 arithmetic")], ids=str)
def test_what_the_engine_cannot_do_is_unsupported(
    changes: dict[str, object], why: str, pool: Pool, target: Target
) -> None:
    if target.engine != "emulated":
        pytest.skip("of the emulated engine")
    ended = pool.run(case(FULL, **changes)).ended
    assert ended.how is How.UNSUPPORTED
    assert why in ended.what
