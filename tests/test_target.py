"""The target's runners on every installed release: plain decode, verify over a real draft's trees, decode on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.layout import req_to_token
from repro.cases.releases import release_order
from repro.traces.finding import Status
from repro.traces.trace import How, Trace
from runners.processes.pool import Pool
from tests.altered_target import OTHER_SLOT, PARTS, SHIFT
from tests.same_bits import bits

DECODE = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(1, 2, 4), slots=6)
VERIFY = replace(DECODE, runner="verify", topk=2, num_steps=3, num_draft_tokens=4)
# A batch that fills its bucket is not staged, so only this bucket is ever stale.
ON_CPU = replace(DECODE, runner="cpu_decode", backend="intel_amx", capture_bs=(5,))
SETUPS = {setup.runner: setup for setup in (DECODE, VERIFY, ON_CPU)}
# Those that run on either engine.
EVERYWHERE = ("decode", "verify")
# The releases in which a batch that does not fill its bucket leaves req_pool_indices behind it (#26292).
STALE_UNTIL = release_order("0.5.12.post1")
STALE = {"slot0_padding": "padded rows of req_pool_indices", "kv_indices": "segment of a padded row"}
# One release before and one after the target's runner was rewritten, and the releases in which it is tried on a CPU.
ONE_OF_EACH, ON_CPU_IN = ("0.5.13", "0.5.15.post1"), ("0.5.12.post1", "0.5.15.post1")
CALLER = {
    "batch_size",
    "input_ids",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
    "req_pool_indices",
    "positions",
    "out_cache_loc",
}


def step(*rows: tuple[int, int, int]) -> Step:
    """A call with these requests: slot, seq_len, data."""
    return Step(requests=tuple(Request(slot=slot, seq_len=seq_len, data=data) for slot, seq_len, data in rows))


FULL = step((1, 9, 1), (2, 17, 2), (3, 5, 3), (4, 30, 4))
PADDED = step((5, 7, 5), (2, 11, 6), (3, 21, 7))
ONE = step((6, 1, 8))
TWO = step((4, 33, 9), (1, 2, 1))
STEPS = (FULL, PADDED, ONE, TWO)

everywhere = pytest.mark.parametrize("runner", EVERYWHERE)


def case(runner: str, *steps: Step, **changes: Any) -> Case:
    one = Case(setup=replace(SETUPS[runner], **changes), steps=steps or STEPS)
    assert problems(one) == []
    return one


def verdicts(one: Case, trace: Trace) -> dict[str, Status]:
    assert trace.ended.how is How.DONE, trace.ended
    return {v.oracle: v.status for v in judge_all(one, trace)}


def failures(one: Case, trace: Trace) -> dict[str, str]:
    assert trace.ended.how is How.DONE, trace.ended
    return {v.oracle: v.where for v in judge_all(one, trace) if v.status is Status.FAIL}


def is_stale(trace: Trace) -> bool:
    return release_order(trace.facts["sglang"]) <= STALE_UNTIL


def here_only(pool: Pool, releases: tuple[str, ...]) -> None:
    """A session of this kind takes seconds, and the stored seeds open one on every release."""
    if not pool.target.is_checkout and pool.target.sglang not in releases:
        pytest.skip(f"of {', '.join(releases)}")


@pytest.fixture(scope="module")
def runs(pool: Pool) -> dict[str, tuple[Trace, Trace, Trace]]:
    """Per runner: the whole case, one without padding, and the whole again."""
    return {
        runner: (pool.run(case(runner)), pool.run(case(runner, FULL, TWO, ONE)), pool.run(case(runner)))
        for runner in EVERYWHERE
    }


@pytest.fixture(scope="module")
def on_cpu(pool: Pool) -> tuple[Trace, Trace]:
    """The whole case, and again after another."""
    if pool.target.engine != "emulated":
        pytest.skip("CPUGraphRunner runs on a CPU")
    here_only(pool, ON_CPU_IN)
    first = pool.run(case("cpu_decode"))
    assert pool.run(case("cpu_decode", TWO, FULL)).ended.how is How.DONE
    return first, pool.run(case("cpu_decode"))


# What is known ---------------------------------------------------------------------------------------------------


@everywhere
def test_the_oracles_say_what_is_known_of_the_release(runner: str, runs: dict[str, tuple[Trace, ...]]) -> None:
    one, trace = case(runner), runs[runner][0]
    assert failures(one, trace) == (STALE if is_stale(trace) else {})
    assert Status.UNKNOWN not in verdicts(one, trace).values()
    assert ("tree_mask" in verdicts(one, trace)) == (runner == "verify")
    if not is_stale(trace):
        assert overall(judge_all(one, trace)) is Status.PASS


@everywhere
def test_without_padding_every_release_passes(runner: str, runs: dict[str, tuple[Trace, ...]]) -> None:
    assert overall(judge_all(case(runner, FULL, TWO, ONE), runs[runner][1])) is Status.PASS


@everywhere
def test_the_same_case_gives_the_same_bits(runner: str, runs: dict[str, tuple[Trace, ...]]) -> None:
    first, _, again = runs[runner]
    assert bits(again) == bits(first)


def test_on_a_cpu_the_oracles_say_what_is_known_of_the_release(on_cpu: tuple[Trace, Trace]) -> None:
    """Its attention takes req_pool_indices themselves, so that there are no kv_indices to judge."""
    one, (trace, again) = case("cpu_decode"), on_cpu
    assert failures(one, trace) == ({"slot0_padding": STALE["slot0_padding"]} if is_stale(trace) else {})
    passed = {oracle for oracle, status in verdicts(one, trace).items() if status is Status.PASS}
    assert passed >= {"ended", "bucket", "staged", "kv_writes", "graph_equals_eager", "callers_batch"}
    assert bits(again) == bits(trace)


def test_on_a_gpu_there_is_no_runner_for_cpus(pool: Pool) -> None:
    if pool.target.engine == "emulated":
        pytest.skip("of the cuda engine")
    ended = pool.run(case("cpu_decode")).ended
    assert (ended.how, ended.what) == (How.UNSUPPORTED, "the intel_amx backend runs on a CPU, not on the cuda engine")


# The record ------------------------------------------------------------------------------------------------------


@everywhere
def test_the_record_is_complete(runner: str, runs: dict[str, tuple[Trace, ...]]) -> None:
    is_complete(runner, runs[runner][0])


def test_the_record_is_complete_on_a_cpu(on_cpu: tuple[Trace, Trace]) -> None:
    is_complete("cpu_decode", on_cpu[0])


def is_complete(runner: str, trace: Trace) -> None:
    setup = SETUPS[runner]
    each = setup.num_draft_tokens if runner == "verify" else 1
    for number, one in enumerate(STEPS):
        count = len(one.requests)
        launch, given, caller = (trace.path(number, path) for path in ("launch", "input", "before"))
        assert caller.keys() == trace.path(number, "after_graph").keys() == CALLER
        assert (launch["raw_bs"], launch["bs"]) == (count, setup.bucket(count))
        for name in ("input_ids", "positions", "out_cache_loc"):
            rows = np.asarray(caller[name]).reshape(count, each).squeeze()
            np.testing.assert_array_equal(np.asarray(launch[name])[:count].squeeze(), rows, err_msg=name)
        assert given["seq_lens"].tolist() == [request.seq_len for request in one.requests]
        assert given["req_pool_indices"].tolist() == [request.slot for request in one.requests]
        for path in ("graph", "eager"):
            outputs = trace.path(number, path)
            assert outputs["logits"].shape == (count, each * setup.vocab_size)
            assert np.isfinite(outputs["logits"]).all()
            assert set(outputs["kv_slots"].tolist()) - {0} == set(given["out_cache_loc"].flatten().tolist())
        assert int(trace.path(number, "guard")["intact"]) > 1000
    # Padded rows hold the neutral value, or, where sglang leaves them as they are, something harmless.
    assert trace.path(-1, "neutral").keys() | trace.path(-1, "range").keys() == launch.keys() - {"bs", "raw_bs"} | (
        {"seq_lens_cpu"} if runner != "cpu_decode" else set()
    )
    assert {name: limits.tolist() for name, limits in trace.path(-1, "range").items()} == {
        "input_ids": [0, setup.vocab_size],
        "positions": [0, setup.context_len],
    }


def test_verify_runs_over_the_trees_of_the_draft(runs: dict[str, tuple[Trace, ...]]) -> None:
    trace = runs["verify"][0]
    shapes = set()
    for number, one in enumerate(STEPS):
        count = len(one.requests)
        given, launch = trace.path(number, "input"), trace.path(number, "launch")
        tokens = launch["input_ids"][:count]
        np.testing.assert_array_equal(tokens[:, 0], given["bonus_tokens"].reshape(count))
        np.testing.assert_array_equal(tokens[:, 1:], given["tokens"])
        assert trace.path(number, "graph")["hidden_states"].shape == (count, 4 * VERIFY.hidden_size)
        shapes |= {tuple(row) for row in given["scores_index"].tolist()}
    # Were they all alike, a wrong mask would not show.
    assert len(shapes) > 1


# Every input matters ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def altered(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(target, session="tests.altered_target", log=tmp_path_factory.mktemp("altered") / "log") as one:
        yield one


@everywhere
def test_every_input_reaches_the_result(runner: str, altered: Pool) -> None:
    """Rows 0 and 2 are changed in one input at a time; rows 1 and 3 have nothing to do with it."""
    here_only(altered, ONE_OF_EACH)
    parts = PARTS[runner]

    def batch(data: int, part: int) -> Step:
        code = part << SHIFT
        return step((1, 9, data + code), (2, 20, data + 50), (3, 31, data + 100 + code), (4, 6, data + 150))

    numbers = [(data, part) for data in (10, 20) for part in range(len(parts) + 1)]
    trace = altered.run(case(runner, *(batch(data, part) for data, part in numbers)))
    assert trace.ended.how is How.DONE, trace.ended
    reached = dict.fromkeys(parts, 0)
    elsewhere = set(req_to_token(SETUPS[runner])[OTHER_SLOT].tolist())
    for number, (data, part) in enumerate(numbers):
        base = numbers.index((data, 0))
        now, before = (trace.path(n, "graph") for n in (number, base))
        name = parts[part - 1] if part else ""
        # The draft's kv_indices are laid out by seq_lens, so there they reach the rows behind as well.
        for row in () if (runner, name) == ("verify", "seq_lens") else (1, 3):
            np.testing.assert_allclose(now["logits"][row], before["logits"][row], atol=1e-5)
        if name:
            changed = any(not np.allclose(now["logits"][row], before["logits"][row], atol=1e-5) for row in (0, 2))
            # In verify the tree's own keys are not read from the cache.
            moved = name == "out_cache_loc" and set(now["kv_slots"].tolist()) & elsewhere
            reached[name] += changed or bool(moved)
    assert [name for name, count in reached.items() if not count] == []


# Other setups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runner", "changes"),
    [
        ("decode", {"page_size": 4, "dtype": "float16", "num_heads": 4, "num_kv_heads": 2, "kv_splits": 2}),
        ("verify", {"topk": 1, "num_draft_tokens": 4, "page_size": 4, "num_heads": 4, "num_kv_heads": 1}),
        ("verify", {"topk": 4, "num_draft_tokens": 9, "dtype": "float16", "capture_bs": (4,), "hidden_size": 64}),
    ],
    ids=str,
)
def test_other_setups(runner: str, changes: dict[str, object], pool: Pool) -> None:
    here_only(pool, ONE_OF_EACH)
    one = case(runner, FULL, PADDED, **changes)
    trace = pool.run(one)
    assert failures(one, trace) == (STALE if is_stale(trace) else {})
