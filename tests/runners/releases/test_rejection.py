"""Drafts that are drawn at random: what a setup, a batch and the reference make of them, and that each place where a
release hands on what they are drawn by is watched."""

from __future__ import annotations

import importlib
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import cases, setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.bucket import judge
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Request, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.sort_key import MODEL, sort_key
from repro.cases.words import paragraph
from repro.shrinking.moves import refit
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, SINGLE, setup_of, step

PLAIN = setup_of("draft", topk=1)
SETUP = replace(PLAIN, rejection=True)
ALL, NONE, SOME = (lambda row: True), (lambda row: False), (lambda row: row % 2 == 0)
CASE = Case(
    setup=SETUP,
    steps=tuple(
        step(*((*request, 0, greedy(row)) for row, request in enumerate(batch)))
        for batch, greedy in ((FULL, NONE), (PADDED, ALL), (PADDED, SOME), (SINGLE, ALL))
    ),
)
TARGET = Target(NEWEST, "emulated")


def test_a_setup_says_so_and_others_keep_their_digests() -> None:
    plain = Case(setup=PLAIN, steps=(step(*FULL),))
    assert problems(CASE) == problems(plain) == []
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=CASE))).case == CASE
    assert "rejection" not in codec.dumps(codec.Seed(about={}, case=plain))
    assert "greedy" not in codec.dumps(codec.Seed(about={}, case=plain))
    words = list(paragraph(codec.Seed(about={}, case=CASE)))
    assert "options: drafts drawn at random" in words
    assert "  row 0: slot 5, prefix of 7 tokens, greedy, data 5" in words
    assert ("rejection",) in MODEL and sort_key(plain) < sort_key(replace(plain, setup=SETUP))


def test_a_setup_without_them_has_no_greedy_requests() -> None:
    assert problems(replace(CASE, setup=PLAIN)) != []
    assert problems(refit(CASE, rejection=False)) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topk": 2}, "in chains, with topk 1"),
        ({"algorithm": "EAGLE3"}, "need the target's vocabulary"),
        ({"runner": "verify"}, "the verify runner does not sample drafts"),
    ],
)
def test_where_there_are_none(changes: dict[str, Any], reason: str) -> None:
    assert any(reason in text for text in problems(replace(CASE, setup=replace(SETUP, **changes))))


@pytest.mark.slow
def test_they_are_drawn_now_and_then() -> None:
    swarm = EVERYTHING.having("rejection")
    draw = examples(setups("draft", "triton", swarm))
    having = [setup for setup in (draw(f"setup {number}") for number in range(60)) if setup.rejection]
    assert having and not any(problems(Case(setup=setup, steps=(step((1, 1, 1)),))) for setup in having)
    assert any(setup.rejection for setup in directed("draft", "triton"))
    assert len(having) > 10 and not any(
        setup.rejection for setup in map(examples(setups("verify", "triton", swarm)), "abc")
    )
    drawn = examples(cases(having[0], swarm))
    batches = [
        [request.greedy for request in each.requests] for number in range(20) for each in drawn(f"{number}").steps
    ]
    assert {all(batch) for batch in batches if batch} == {False, True}


@pytest.mark.emulated
def test_what_requests_sample_by() -> None:
    """Imported here: this module is read where torch need not be."""
    rejection = importlib.import_module("runners.releases.options.rejection")
    requests = [Request(slot=1, seq_len=3, data=1), Request(slot=2, seq_len=3, data=2, greedy=True)]
    inputs = rejection.given(SETUP, requests)
    assert np.allclose(inputs["draft_probs"].sum(axis=1), 1) and inputs["draft_probs"].min() > 0
    assert inputs["temperatures"][1] == 1 and inputs["top_ks"].tolist() == [rejection.EVERY_TOKEN, 1]
    assert rejection.given(PLAIN, requests) == {}
    numbers = rejection.numbers(SETUP)
    assert numbers.shape == (SETUP.num_steps - 1, SETUP.slots, SETUP.vocab_size)
    assert numbers.min() > 0 and abs(numbers.mean() - 1) < 0.1


@pytest.mark.emulated
def test_every_batch_draws_alike() -> None:
    rejection, torch = importlib.import_module("runners.releases.options.rejection"), importlib.import_module("torch")
    live = types.SimpleNamespace(setup=SETUP, device="cpu")
    shares = torch.softmax(torch.arange(3 * SETUP.vocab_size).reshape(3, -1) / 100, dim=-1)
    with rejection.drawing(live):
        first = torch.empty_like(shares).exponential_(1.0)
        second = torch.empty_like(shares).exponential_(1.0)
    with rejection.drawing(live):
        assert torch.equal(torch.empty_like(shares[:2]).exponential_(1.0), first[:2])
        assert torch.equal(torch.multinomial(shares[:2], 1), (shares / second)[:2].argmax(-1, keepdim=True))
    assert not torch.equal(first, second)


def test_bucket_knows_which_graph_a_batch_takes() -> None:
    def trace(**launched: int) -> Trace:
        scalars = {("launch", "bs"): 4, ("launch", "raw_bs"): 3}
        scalars |= {("launched", name): value for name, value in launched.items()}
        arrays = [
            RecordedArray(step=1, path=path, name=name, array=np.asarray(value))
            for (path, name), value in scalars.items()
        ]
        return Trace(ended=End(how=Termination.DONE), seen=tuple(arrays))

    assert judge(CASE, trace()).status is judge(CASE, trace(size=4, greedy=1)).status is Status.PASS
    assert judge(CASE, trace(size=2, greedy=1)).where == "size of the graph"
    verdict = judge(CASE, trace(size=4, greedy=0))
    assert (verdict.status, verdict.where) == (Status.FAIL, "variant of the graph")
    assert "a batch of 3 ran through a graph for any requests" in verdict.detail


# Of the newest release: function, statement, what takes its place, and the failures that follow.
_RUNNER = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
_EXECUTE = (_RUNNER, "EAGLEDraftCudaGraphRunner.execute")
_PROPOSAL = ("sglang/srt/speculative/spec_utils.py", "sample_draft_proposal")
_SAMPLED = "forward_batch.sampling_info"
_BOTH = ("reference", "wrong values")
PLANTED = {
    "temperatures, not staged": (
        *_EXECUTE,
        f"self.temperatures[:raw_bs].copy_({_SAMPLED}.temperatures[:raw_bs])",
        "pass",
        ("staged", "real rows of temperatures"),
    ),
    "top_ks, not staged": (
        *_EXECUTE,
        f"self.top_ks[:raw_bs].copy_({_SAMPLED}.top_ks[:raw_bs])",
        "pass",
        ("staged", "real rows of top_ks"),
    ),
    "draft_probs, stale padding": (
        *(*_EXECUTE, "buffers.draft_probs.zero_()", "pass"),
        ("slot0_padding", "padded rows of draft_probs"),
    ),
    "greedy requests through the graph of all others": (
        _RUNNER,
        "EAGLEDraftCudaGraphRunner._sampling_variant",
        f"if get_spec().speculative_use_rejection_sampling and {_SAMPLED} is not None and {_SAMPLED}.is_all_greedy:",
        "if False:",
        ("bucket", "variant of the graph"),
    ),
    "greedy requests are drawn for": (
        *(*_PROPOSAL, "greedy = (top_ks <= 1).view(-1, 1)", "greedy = (top_ks < 1).view(-1, 1)"),
        _BOTH,
    ),
}


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if number else ()) for number, name in enumerate(PLANTED)]
)
def test_each_place_is_watched(name: str, newest: Pool) -> None:
    file, function, old, new, failure = PLANTED[name]
    every = mutants(file, (sglang_path(TARGET) / file).read_text())
    planted = next(m for m in every if (m.function, m.old, m.new) == (function, old, new))
    newest.change({"edit": planted.change()})
    trace = newest.run(CASE)
    assert trace.ended.how is Termination.DONE, trace.ended
    failing = {(v.oracle, v.where) for v in judge_all(CASE, trace) if v.status is Status.FAIL}
    assert failure in failing


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
def test_the_newest_release_is_right(newest: Pool) -> None:
    trace = newest.run(CASE)
    verdicts = judge_all(CASE, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    assert "reference" not in trace.facts
    assert "draft_probs" in trace.path(0, "reference") and "draft_probs" not in trace.path(1, "graph")
    assert [int(trace.path(number, "launched")["greedy"]) for number in range(4)] == [0, 1, 0, 1]
