"""The draft runner with other target and draft models than EAGLE's, on every installed release; and on EAGLE's first
worker, in the releases that have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles.catalogue import judge_all
from repro.cases.case import Case, Setup, Target, problems
from repro.cases.release_list import has_runner
from repro.traces.finding import Status
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import FULL, PADDED, failures, step
from tests.builders.known_failures import may_fail, must_fail

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=5)


# Two requests of FULL with other contents; and all of them with other lengths.
CONTENTS = ((1, 9, 1), (2, 17, 22), (3, 5, 33), (4, 30, 4))
LENGTHS = ((1, 30, 1), (2, 5, 2), (3, 17, 3), (4, 9, 4))
STEPS = tuple(step(*batch) for batch in (FULL, PADDED, CONTENTS, LENGTHS))


def case(**changes: Any) -> Case:
    return Case(setup=replace(SETUP, **changes), steps=STEPS)


def known_of(case: Case, trace: Trace) -> None:
    """Nothing fails but what is known of the release, and what any padded batch shows does."""
    place, release = (case.setup.runner, case.setup.backend), trace.facts["sglang"]
    known = may_fail(*place, release, trace.facts["engine"])
    assert must_fail(*place, release) <= failures(case, trace).keys() <= known


def judged(case: Case, trace: Trace) -> None:
    """Check that verdicts are as known of the release, and that every oracle that can judge did."""
    assert trace.ended.how is Termination.DONE, trace.ended
    known_of(case, trace)
    verdicts = {v.oracle: v.status for v in judge_all(case, trace)}
    known = may_fail(case.setup.runner, case.setup.backend, trace.facts["sglang"], trace.facts["engine"])
    for oracle in ("staged", "metadata_shape", "kv_writes", "graph_equals_eager", "bucket", "callers_batch"):
        assert verdicts[oracle] is Status.PASS or oracle in known, oracle


def drafted(trace: Trace, number: int) -> np.ndarray:
    tokens = trace.get(number, "graph", "tokens")
    assert tokens is not None
    return tokens


@pytest.mark.parametrize("algorithm", ["EAGLE3", "NEXTN"])
def test_every_release_drafts_with_it(algorithm: str, pool: Pool) -> None:
    example = case(algorithm=algorithm)
    trace = pool.run(example)
    judged(example, trace)
    same = (drafted(trace, 0) == drafted(trace, 2)).all(axis=1)
    assert same.tolist() == [True, False, False, True], "contents matter, and to nobody else"
    assert not np.array_equal(drafted(trace, 0), drafted(trace, 3)), "attention looks at what is there"
    if algorithm == "EAGLE3":
        # The draft model knows every other token, by numbers of its own.
        assert all((drafted(trace, number) % 2 == 1).all() for number in range(len(STEPS)))
    for number in range(len(STEPS)):
        inputs = trace.path(number, "input")["out_cache_loc"].reshape(-1, SETUP.topk, SETUP.num_steps)
        written = trace.path(number, "graph")["kv_slots"]
        assert set(written.tolist()) - {0} == set(inputs[:, :, : SETUP.num_steps - 1].flatten().tolist())


@pytest.mark.parametrize("algorithm", ["EAGLE3", "NEXTN"])
def test_every_release_extends_drafts_with_it(algorithm: str, pool: Pool) -> None:
    """EAGLE3's draft model is handed the hidden states of three layers."""
    chains = replace(SETUP, runner="draft_extend", algorithm=algorithm, topk=1, capture_bs=(4,))
    example = Case(setup=chains, steps=STEPS[:2])
    trace = pool.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    width = trace.path(0, "launch")["hidden_states"].size // (SETUP.max_bs * SETUP.num_draft_tokens)
    assert width == SETUP.hidden_size * (3 if algorithm == "EAGLE3" else 1)
    known_of(example, trace)


def test_the_first_worker_drafts_as_the_second_does(pool: Pool, target: Target) -> None:
    first, second = case(runner="draft_v1"), case()
    trace = pool.run(first)
    if not has_runner(pool.target.sglang, "draft_v1"):
        assert trace.ended.how is Termination.UNSUPPORTED
        assert "the last release that has the draft_v1 runner" in trace.ended.what
        return
    judged(first, trace)
    other = pool.run(second)
    for number in range(len(STEPS)):
        np.testing.assert_array_equal(drafted(trace, number), drafted(other, number))


def test_latent_attention_is_not_drawn_for_flashinfer() -> None:
    changes = {"backend": "flashinfer", "dtype": "float16", "head_dim": 64}
    assert problems(case(**changes)) == problems(case(algorithm="EAGLE3", **changes)) == []
    assert problems(case(algorithm="NEXTN", **changes)) == ["setup: the NEXTN algorithm has no flashinfer backend"]
