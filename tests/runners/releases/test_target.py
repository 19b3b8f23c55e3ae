"""The target's runners: what their records hold besides what conformance asks for, and setups that it does not try."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repro.cases.case import Case
from repro.cases.release_list import NEWEST
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import FULL, PADDED, Batch, case_of, failures, setup_of
from tests.builders.known_failures import may_fail, must_fail

# One release before and one after the target's runner was rewritten: a session of this kind takes seconds.
ONE_OF_EACH = ("0.5.13", NEWEST)
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


def case(runner: str, *batches: Batch, **changes: Any) -> Case:
    return case_of(setup_of(runner, **changes), *batches)


def here_only(pool: Pool) -> None:
    if not pool.target.is_checkout and pool.target.sglang not in ONE_OF_EACH:
        pytest.skip(f"one release of each kind is enough: {', '.join(ONE_OF_EACH)}")


@pytest.fixture(scope="module")
def traces(pool: Pool) -> dict[str, Trace]:
    here_only(pool)
    return {runner: pool.run(case(runner)) for runner in ("decode", "verify")}


@pytest.mark.parametrize("runner", ["decode", "verify"])
def test_a_launch_holds_what_the_caller_gave(runner: str, traces: dict[str, Trace]) -> None:
    trace, example = traces[runner], case(runner)
    setup = example.setup
    each = setup.num_draft_tokens if runner == "verify" else 1
    for number, step in enumerate(example.steps):
        count = len(step.requests)
        launch, inputs, caller = (trace.path(number, path) for path in ("launch", "input", "before"))
        # A chain has links, too: by them a target accepts tokens.
        links = {"index", "next_token", "next_sibling"} if runner == "verify" else set()
        assert caller.keys() == CALLER | links
        for name in ("input_ids", "positions", "out_cache_loc"):
            rows = np.asarray(caller[name]).reshape(count, each).squeeze()
            np.testing.assert_array_equal(np.asarray(launch[name])[:count].squeeze(), rows, err_msg=name)
        for path in ("graph", "eager"):
            outputs = trace.path(number, path)
            assert outputs["logits"].shape == (count, each * setup.vocab_size)
            assert set(outputs["kv_slots"].tolist()) - {0} == set(inputs["out_cache_loc"].flatten().tolist())


def test_verify_runs_over_the_trees_of_the_draft(traces: dict[str, Trace]) -> None:
    trace, example = traces["verify"], case("verify")
    shapes = set()
    for number, step in enumerate(example.steps):
        count = len(step.requests)
        inputs, launch = trace.path(number, "input"), trace.path(number, "launch")
        tokens = launch["input_ids"][:count]
        np.testing.assert_array_equal(tokens[:, 0], inputs["bonus_tokens"].reshape(count))
        np.testing.assert_array_equal(tokens[:, 1:], inputs["tokens"])
        assert trace.path(number, "graph")["hidden_states"].shape == (count, 4 * example.setup.hidden_size)
        shapes |= {tuple(row) for row in inputs["scores_index"].tolist()}
    # Were they all alike, a wrong mask would not show.
    assert len(shapes) > 1


def test_on_a_gpu_there_is_no_runner_for_cpus(pool: Pool) -> None:
    if pool.target.engine == "emulated":
        pytest.skip("this test is for the cuda engine")
    ended = pool.run(case("cpu_decode")).ended
    assert (ended.how, ended.what) == (
        Termination.UNSUPPORTED,
        "the intel_amx backend runs on a CPU, not on the cuda engine",
    )


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
    here_only(pool)
    example = case(runner, FULL, PADDED, **changes)
    trace = pool.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    release = trace.facts["sglang"]
    known = may_fail(runner, "triton", release, trace.facts["engine"])
    assert must_fail(runner, "triton", release) <= failures(example, trace).keys() <= known
