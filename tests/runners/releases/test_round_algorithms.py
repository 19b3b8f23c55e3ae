"""Rounds over each backend and by each algorithm, on the newest release: texts are the target's, and graphs ran."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from fuzz.draw.rounds import round_cases
from oracles import launches
from oracles.catalogue import judge_all, overall
from repro.cases import room
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import graph_name
from repro.cases.rows.serving import launched as of_graphs
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.accepted import most_accepted
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, SMALL, TREE, launched

TARGET = Target(NEWEST, "emulated")
HALF = replace(CHAIN, dtype="float16", head_dim=64)
SETUPS = {
    "fa3, EAGLE3, a chain": replace(HALF, backend="fa3", algorithm="EAGLE3", overlap=True),
    "flashinfer, EAGLE, a tree": replace(HALF, backend="flashinfer", topk=2, num_draft_tokens=6, overlap=True),
    "triton, EAGLE, a stream for plans": replace(CHAIN, overlap=True, plan_stream=True, disagreement=30),
    # A vocabulary of which neither model's head has whole blocks.
    "triton, EAGLE3, a tree": replace(TREE, algorithm="EAGLE3", disagreement=30, vocab_size=200),
    "triton, NEXTN, a chain": replace(CHAIN, algorithm="NEXTN", disagreement=30),
}
STEPS = (
    Step(requests=(Request(slot=1, seq_len=9, data=1, further=9),)),
    Step(requests=(Request(slot=1, seq_len=5, data=2, further=4),), wait=2),
)
REFUSED = {
    "latent attention over fa3": replace(HALF, backend="fa3", algorithm="NEXTN"),
    "a stream for plans over fa3": replace(HALF, backend="fa3", plan_stream=True),
    "a stream for plans over flashinfer": replace(HALF, backend="flashinfer", plan_stream=True),
}


@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 2))
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    launched = {count.split()[2] for count in trace.facts["launches"].split(", ")}
    assert launched == {"draft", "verify", "draft_extend"}
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.parametrize("backend", RUNNER_FACTS["round"].backends)
def test_drawn_arrivals_are_valid(backend: str) -> None:
    drawn = [case for number in range(24) for case in islice(round_cases(5, number, "round", backend, 6), 6)]
    assert [problems(case) for case in drawn] == [[]] * len(drawn)
    further = [request.further for case in drawn for step in case.steps for request in step.requests]
    assert max(further) > 8 and 0 in further
    setups = [case.setup for case in drawn]
    for field in ("overlap", "pool", "disagreement", "radix", "chunk", "algorithm"):
        assert len({getattr(setup, field) for setup in setups}) > 1, field
    assert {setup.plan_stream for setup in setups} == {False, backend == "triton"}


@pytest.mark.emulated(NEWEST)
def test_a_stream_for_plans_is_refused_over_backends_without_an_update_behind_the_draft() -> None:
    attention = sglang_path(TARGET) / "sglang/srt/layers/attention"
    for backend, file in (("triton", "triton"), ("flashinfer", "flashinfer"), ("fa3", "flashattention")):
        source = (attention / f"{file}_backend.py").read_text()
        assert BACKEND_FACTS[backend].plans_ahead == ("def update_verify_buffers_to_fill_after_draft" in source), (
            backend
        )


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_driven_is_refused(name: str) -> None:
    assert problems(Case(setup=REFUSED[name], steps=STEPS))


def test_launches_of_an_adaptive_worker_are_judged_with_the_draft_steps_of_their_graphs() -> None:
    setup = replace(CHAIN, capture_bs=(2, 4), adaptive=2)
    alone = of_graphs(setup, graph_name("verify", 2))
    assert (alone.runner, alone.num_steps, alone.num_draft_tokens, alone.adaptive) == ("verify", 2, 3, 0)
    for values, status in (([1, 0, 0, 0], Status.PASS), ([1, 3, 0, 0], Status.FAIL)):
        trace = launched(**{"launch/req_pool_indices": values})
        seen = tuple(replace(array, name=array.name.replace("draft/", "draft@2/")) for array in trace.seen)
        verdicts = launches.judge(replace(SMALL, setup=setup), replace(trace, seen=seen))
        assert {verdict.status for verdict in verdicts} == {Status.PASS, status}
        assert {verdict.runner for verdict in verdicts if verdict.status is Status.FAIL} <= {"draft"}
    assert room.served_room(replace(setup, adaptive=8), 9) > room.served_room(setup, 9)
