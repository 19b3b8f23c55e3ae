"""Setups with a window, without padding, without lengths on the host; and batches that no graph holds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuzz.draw.rounds import rounds
from fuzz.draw.strategies import fullest
from oracles import bucket
from oracles.catalogue import judge_all
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target, problems, seq_len_max
from repro.cases.codec import Seed, case_from_json, case_to_json
from repro.cases.words import paragraph
from repro.traces.finding import Status
from repro.traces.trace import How, Seen, Trace
from runners.processes.pool import Pool
from tests.builders.toy_traces import toy_trace

SETUP = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)


def batch(*lengths: int) -> Step:
    return Step(requests=tuple(Request(slot=n, seq_len=length, data=n) for n, length in enumerate(lengths, start=1)))


@pytest.mark.parametrize("options", [{"window": 7}, {"padded": False}, {"mirrored": False}], ids=str)
def test_an_option_is_written_where_it_says_something(options: dict[str, Any]) -> None:
    plain, case = (Case(setup=setup, steps=(batch(3),)) for setup in (SETUP, replace(SETUP, **options)))
    setup = case_to_json(plain)["setup"]
    assert isinstance(setup, dict) and not setup.keys() & {"window", "padded", "mirrored"}
    assert case_from_json(case_to_json(case)) == case
    assert codec.loads(codec.dumps(Seed(about={}, case=case))).case == case
    assert codec.digest(case) != codec.digest(plain)
    assert any("options:" in line for line in paragraph(Seed(about={}, case=case)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runner": "draft", "num_steps": 2, "num_draft_tokens": 3, "window": 7}, "has no window"),
        ({"runner": "kv_move", "num_steps": 2, "num_draft_tokens": 3, "padded": False}, "leaves to eager"),
        ({"runner": "frozen_kv_mtp", "num_steps": 2, "num_draft_tokens": 3, "mirrored": False}, "lengths on the host"),
    ],
)
def test_options_of_other_runners_are_refused(changes: dict[str, Any], said: str) -> None:
    case = Case(setup=replace(SETUP, **changes), steps=(batch(3),))
    assert any(said in problem for problem in problems(case))


def test_a_batch_beyond_the_largest_bucket_is_eagers() -> None:
    assert problems(Case(setup=SETUP, steps=(batch(1, 2, 3, 4, 5),))) == []
    assert problems(Case(setup=replace(SETUP, runner="cpu_decode", backend="intel_amx"), steps=(batch(1, 2, 3, 4, 5),)))
    assert [SETUP.replays(size) for size in (1, 2, 4, 5)] == [True, True, True, False]
    assert [replace(SETUP, padded=False).replays(size) for size in (1, 2, 4, 5)] == [False, True, True, False]


def test_the_first_case_of_a_setup_is_its_fullest() -> None:
    for setup in {case.setup for case in itertools.islice(rounds(5, "decode", "triton", 1), 12)}:
        first = fullest(setup)
        assert problems(first) == []
        assert len(first.steps[0].requests) == setup.max_bs
        assert {request.seq_len for request in first.steps[0].requests} == {seq_len_max(setup)}
        beyond = [len(step.requests) > setup.max_bs for step in first.steps]
        assert any(beyond) == (setup.slots > setup.max_bs)
        assert not beyond[-1]
    setups = [next(rounds(seed, "decode", "triton", 1)) for seed in range(4)]
    assert all(case == fullest(case.setup) for case in setups)


def asked(case: Case, can_run: int) -> Trace:
    trace = toy_trace(replace(case, setup=replace(case.setup, runner="toy", num_steps=2, num_draft_tokens=3)))
    return replace(trace, seen=(*trace.seen, Seen(step=0, path="asked", name="can_run", array=np.asarray(can_run))))


@pytest.mark.parametrize(
    ("size", "can_run", "where"),
    [
        (2, 1, ""),
        (2, 0, "a batch refused that a graph holds"),
        (3, 0, ""),
        (3, 1, "a batch taken that no graph holds"),
    ],
)
def test_what_a_runner_says_of_a_batch_is_judged(size: int, can_run: int, where: str) -> None:
    case = Case(setup=replace(SETUP, padded=False), steps=(batch(*range(1, size + 1)),))
    verdict = bucket.judge(case, asked(case, can_run))
    assert (verdict.status is Status.FAIL, verdict.where) == (bool(where), where)


@pytest.mark.emulated("0.5.13")
def test_states_that_a_release_stands() -> None:
    """A window, no lengths on the host, and eager between two graphs: nothing fails, and all of it was run."""
    setup = replace(SETUP, window=7, mirrored=False)
    case = Case(setup=setup, steps=(batch(3, 20, 30), batch(1, 2, 3, 4, 25), batch(9, 31)))
    with Pool(Target("0.5.13", "emulated")) as pool:
        trace = pool.run(case)
    assert trace.ended.how is How.DONE, trace.ended
    assert not [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    assert trace.replayed == {0, 2}
    assert trace.get(1, "asked", "can_run") == 0
    assert "seq_lens_sum" not in trace.path(0, "planned")
    window = trace.get(0, "metadata", "window_kv_indptr")
    assert window is not None
    assert np.diff(window[0])[:3].tolist() == [3, 7, 7]
