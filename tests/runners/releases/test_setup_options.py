"""Setups with a window, without padding, without lengths on the host; and batches that no graph holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
from repro.cases.layout import req_to_token
from repro.cases.sort_key import sort_key
from repro.cases.words import paragraph
from repro.shrinking.passes import PASSES
from repro.traces.finding import Status
from repro.traces.trace import RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.tiers import few
from tests.builders.toy_traces import toy_trace

SETUP = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)


def batch(*lengths: int) -> Step:
    return Step(requests=tuple(Request(slot=n, seq_len=length, data=n) for n, length in enumerate(lengths, start=1)))


OPTIONS = [
    {"window": 7},
    {"window": 7, "swa": True},
    {"logit_cap": 5},
    {"deterministic": True},
    {"returns_hidden": True},
    {"padded": False},
    {"mirrored": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_is_written_where_it_says_something(options: dict[str, Any]) -> None:
    plain, case = (Case(setup=setup, steps=(batch(3),)) for setup in (SETUP, replace(SETUP, **options)))
    setup = case_to_json(plain)["setup"]
    assert isinstance(setup, dict) and not setup.keys() & codec.LATER
    assert case_from_json(case_to_json(case)) == case
    assert codec.loads(codec.dumps(Seed(about={}, case=case))).case == case
    assert codec.digest(case) != codec.digest(plain)
    assert any("options:" in line for line in paragraph(Seed(about={}, case=case)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runner": "kv_move", "num_steps": 2, "num_draft_tokens": 3, "window": 7}, "has no window"),
        (
            {"runner": "draft", "num_steps": 2, "num_draft_tokens": 3, "backend": "flashinfer", "window": 7},
            "drafts with a window are unsupported",
        ),
        # Of one draft step, but started with three.
        (
            {"runner": "draft_extend", "backend": "flashinfer", "window": 7, "adaptive": 3},
            "drafts with a window are unsupported",
        ),
        # A draft of its own has the target's window.
        (
            {
                "runner": "round",
                "algorithm": "STANDALONE",
                "num_steps": 2,
                "num_draft_tokens": 3,
                "backend": "flashinfer",
                "window": 7,
            },
            "drafts with a window are unsupported on flashinfer",
        ),
        ({"swa": True}, "needs a target with sliding_window"),
        ({"runner": "draft", "num_steps": 2, "num_draft_tokens": 3, "returns_hidden": True}, "nothing requests"),
        ({"overhang": 4}, "no positions after its context"),
        ({"runner": "frozen_kv_mtp", "num_steps": 2, "num_draft_tokens": 3, "logit_cap": 5}, "no logit cap"),
        ({"runner": "kv_move", "num_steps": 2, "num_draft_tokens": 3, "padded": False}, "never falls back"),
        ({"runner": "frozen_kv_mtp", "num_steps": 2, "num_draft_tokens": 3, "mirrored": False}, "lengths on the host"),
    ],
)
def test_options_of_other_runners_are_refused(changes: dict[str, Any], reason: str) -> None:
    case = Case(setup=replace(SETUP, **changes), steps=(batch(3),))
    assert any(reason in problem for problem in problems(case))


def test_a_worker_may_start_with_several_draft_steps_where_the_backend_for_them_can_be_made() -> None:
    changes: dict[str, Any] = {"runner": "draft_extend", "window": 7, "adaptive": 3}
    for backend in ("triton", "fa3"):
        setup = replace(SETUP, backend=backend, head_dim=64, dtype="float16", **changes)
        assert problems(Case(setup=setup, steps=(batch(3),))) == []


@pytest.mark.parametrize(("backend", "steps"), [("triton", 2), ("fa3", 2), ("flashinfer", 1)])
def test_a_draft_of_its_own_has_a_window_where_its_backend_can_be_made(backend: str, steps: int) -> None:
    setup = replace(SETUP, runner="round", backend=backend, head_dim=64, dtype="float16", window=7, swa=True)
    setup = replace(setup, algorithm="STANDALONE", num_steps=steps, num_draft_tokens=steps + 1)
    assert not any("window" in problem for problem in problems(Case(setup=setup, steps=(batch(3),))))


def test_idle_steps_and_steps_without_lengths_on_the_host_are_cases() -> None:
    plain = Case(setup=SETUP, steps=(batch(3), batch(), batch(4, 5)))
    half = replace(plain, steps=(batch(3), replace(batch(), mirrored=False), batch(4, 5)))
    moved = replace(plain, steps=(*plain.steps[:2], replace(batch(4, 5), layout=7, hidden="full")))
    for case in (plain, half, moved):
        assert problems(case) == []
        assert case_from_json(case_to_json(case)) == case
        assert codec.loads(codec.dumps(Seed(about={}, case=case))).case == case
    assert len({codec.digest(case) for case in (plain, half, moved, replace(plain, steps=plain.steps[::2]))}) == 4
    assert any("0 requests in bucket 2, 2 padded rows, lengths on the device alone" in line for line in said(half))
    assert problems(Case(setup=SETUP, steps=(batch(),))) == ["no step has a request"]
    assert problems(replace(plain, setup=replace(SETUP, runner="cpu_decode", backend="intel_amx")))


def said(case: Case) -> list[str]:
    return list(paragraph(Seed(about={}, case=case)))


def test_prefixes_end_before_the_context_and_drafts_behind_it() -> None:
    drafting = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=2, context_len=32)
    assert seq_len_max(drafting) == 32 - 2 * 3
    assert seq_len_max(replace(drafting, overhang=8)) == 31
    assert req_to_token(replace(drafting, overhang=8)).shape == (3, 40)
    assert problems(Case(setup=replace(drafting, overhang=9), steps=(batch(31),)))


def test_steps_keep_what_they_have_when_a_case_is_made_smaller() -> None:
    """Idle steps and steps without lengths on the host go by passes of their own."""
    case = Case(setup=SETUP, steps=(batch(3, 9), replace(batch(), mirrored=False), batch(4, 5)))

    def fails(tried: Case) -> bool:
        return any(not step.requests and not step.mirrored for step in tried.steps)

    smallest = minimal(case, fails)
    assert sorted((len(step.requests), step.mirrored) for step in smallest.steps) == [(0, False), (1, True)]


def minimal(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that the passes reach, each tried until it helps no more."""
    for make in PASSES:
        moves = make(case)
        try:
            tried = next(moves)
            while True:
                taken = not problems(tried) and sort_key(tried) < sort_key(case) and fails(tried)
                tried = moves.send(taken)
        except StopIteration as end:
            case = end.value
    return case


def test_a_batch_that_asks_for_hidden_states_is_eagers_where_graphs_have_none() -> None:
    asking = replace(batch(1, 2), hidden="last")
    case = Case(setup=SETUP, steps=(asking,))
    assert problems(case) == []
    assert any("in no bucket, for eager, with hidden states: last" in line for line in said(case))
    assert [replace(SETUP, returns_hidden=kept).replays(2, "last") for kept in (False, True)] == [False, True]
    assert problems(replace(case, steps=(replace(asking, hidden="some"),)))


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
    return replace(
        trace, seen=(*trace.seen, RecordedArray(step=0, path="asked", name="can_run", array=np.asarray(can_run)))
    )


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


def test_a_batch_whose_request_for_hidden_states_is_turned_away_is_judged_without_it() -> None:
    case = Case(setup=replace(SETUP, padded=False), steps=(replace(batch(1, 2), hidden="full"),))
    taken = asked(case, 1)
    assert bucket.judge(case, taken).where == "a batch taken that no graph holds"
    turned_away = RecordedArray(step=0, path="asked", name="hidden", array=np.asarray(0))
    assert bucket.judge(case, replace(taken, seen=(*taken.seen, turned_away))).status is Status.PASS
    refused = asked(case, 0)
    verdict = bucket.judge(case, replace(refused, seen=(*refused.seen, turned_away)))
    assert verdict.where == "a batch refused that a graph holds"


ROUND = (batch(3, 20, 30), batch(), replace(batch(9, 31), mirrored=False, layout=1), batch(1, 2))
DRAFTING: dict[str, Any] = {"topk": 2, "num_steps": 2, "num_draft_tokens": 4}
STATES = {
    "decode": SETUP,
    "graphs with hidden states": replace(SETUP, returns_hidden=True),
    "pool with sliding layers": replace(SETUP, runner="verify", window=7, swa=True, page_size=2, **DRAFTING),
    "draft behind the context": replace(SETUP, runner="draft", context_len=32, overhang=8, logit_cap=5, **DRAFTING),
    "a single draft step": replace(SETUP, runner="verify", topk=2, num_draft_tokens=3),
    "a single layer": replace(SETUP, runner="multi_layer"),
}


# What repro/known_issues.toml has of them: stale slots in an idle batch, and the window of a tree's token by its place.
KNOWN: dict[str, set[str]] = {
    "a single layer": {"padded rows of req_pool_indices"},
    "pool with sliding layers": {"wrong values, window"},
}


@pytest.mark.emulated("0.5.23")
@pytest.mark.parametrize("name", few(STATES, 3))
def test_states_that_the_newest_release_stands(name: str, newest: Pool) -> None:
    """Idle batches and batches without lengths on the host between others, on setups of all kinds."""
    asks = STATES[name].returns_hidden
    steps = tuple(
        replace(step, hidden=hidden if asks else "")
        for step, hidden in zip(ROUND, ("", "full", "last", "full"), strict=True)
    )
    case = Case(setup=STATES[name], steps=steps)
    assert problems(case) == []
    trace = newest.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    failed = {verdict.where for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}
    assert failed <= KNOWN.get(name, set())
    assert trace.replayed == {0, 1, 2, 3}
    assert "seq_lens_sum" in trace.path(0, "planned")
    assert "seq_lens_sum" not in trace.path(2, "planned")
    assert trace.get(1, "launch", "raw_bs") == 0


@pytest.mark.emulated("0.5.23")
@pytest.mark.parametrize("padded", [True, False])
def test_the_newest_release_turns_away_what_its_graphs_have_no_hidden_states_for(newest: Pool, padded: bool) -> None:
    case = Case(setup=replace(SETUP, padded=padded), steps=(replace(batch(1, 2), hidden="full"),))
    trace = newest.run(case)
    assert trace.get(0, "asked", "hidden") == 0
    assert trace.replayed == {0}
    assert bucket.judge(case, trace).status is Status.PASS


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.13")
def test_states_that_a_release_stands() -> None:
    """A window, no lengths on the host, and eager between two graphs: nothing fails but for known issues, and all of it
    was run."""
    setup = replace(SETUP, window=7, mirrored=False)
    case = Case(setup=setup, steps=(batch(3, 20, 30), batch(1, 2, 3, 4, 25), batch(9, 31)))
    with Pool(Target("0.5.13", "emulated")) as pool:
        trace = pool.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    failed = {verdict.where for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}
    # Each window is a token short, in the eager pass too, and lengths on the host are those of an earlier batch.
    windows = ("length of a real row", "kv_indices row too narrow", "a slot is not read", "wrong values")
    assert failed == {"planned with seq_lens_cpu of a batch without"} | {f"{where}, window" for where in windows}
    assert trace.replayed == {0, 2}
    assert trace.get(1, "asked", "can_run") == 0
    assert "seq_lens_sum" not in trace.path(0, "planned")
    window = trace.get(0, "metadata", "window_kv_indptr")
    assert window is not None
    assert np.diff(window[0])[:3].tolist() == [3, 7, 7]  # a token short, as the oracles say
