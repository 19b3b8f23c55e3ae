"""Draft models with positions in three dimensions: what a setup, a batch and the reference make of them, and that each
place where a release hands them on is watched."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.sort_key import MODEL, sort_key
from repro.cases.words import paragraph
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, SINGLE, case_of, setup_of

PLAIN = setup_of("draft", algorithm="EAGLE3")
SETUP = replace(PLAIN, mrope=True)
CASE = case_of(SETUP, FULL, PADDED, SINGLE)
TARGET = Target(NEWEST, "emulated")
REQUESTS = [Request(slot=1, seq_len=30, data=1), Request(slot=2, seq_len=1, data=2), Request(slot=3, seq_len=9, data=3)]


def test_a_setup_says_so_and_others_keep_their_digests() -> None:
    plain = replace(CASE, setup=PLAIN)
    assert problems(CASE) == problems(plain) == []
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=CASE))).case == CASE
    assert codec.digest(CASE) != codec.digest(plain)
    # As it was before there were such setups.
    assert codec.digest(Case(setup=setup_of("draft"), steps=plain.steps)) == "d3911272a9fc"
    assert "mrope" not in codec.dumps(codec.Seed(about={}, case=plain))
    assert "options: positions in three dimensions" in list(paragraph(codec.Seed(about={}, case=CASE)))
    assert ("mrope",) in MODEL and sort_key(plain) < sort_key(CASE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "EAGLE"}, "the EAGLE algorithm has no three-dimensional positions"),
        ({"runner": "verify", "algorithm": "EAGLE"}, "the verify runner has no three-dimensional positions"),
    ],
)
def test_others_have_one_dimension(changes: dict[str, Any], reason: str) -> None:
    assert any(reason in text for text in problems(replace(CASE, setup=replace(SETUP, **changes))))


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["draft", "draft_extend"])
def test_they_are_drawn_now_and_then(runner: str) -> None:
    draw = examples(setups(runner, "triton", EVERYTHING.having("mrope")))
    drawn = [draw(f"setup {number}") for number in range(300)]
    having = [setup for setup in drawn if setup.mrope]
    assert 5 < len(having) < 150
    assert {setup.algorithm for setup in having} == {"EAGLE3"}
    assert any(setup.mrope for setup in directed(runner, "triton"))


@pytest.mark.emulated
def test_each_axis_of_a_request_has_positions_of_its_own() -> None:
    """Imported here: this module is read where torch need not be."""
    mrope = importlib.import_module("runners.releases.options.mrope")
    lengths = np.array([[request.seq_len] for request in REQUESTS])
    positions = lengths + np.arange(4)
    inputs = mrope.given(SETUP, REQUESTS, positions)[mrope.NAME]
    assert inputs.shape == (3, 4, 3)
    assert (inputs >= 1).all() and (inputs <= positions[:, :, None]).all()  # padding is at 0
    assert (np.diff(inputs, axis=1) == 1).all()
    assert len(set(inputs[0, 0].tolist()) | {30}) == 4
    assert mrope.given(PLAIN, REQUESTS, positions) == {}
    for head_dim in (8, 16, 24, 64, 128):
        sections = mrope.sections(replace(SETUP, head_dim=head_dim))
        assert sum(sections) == head_dim // 2 and min(sections) > 0


@pytest.mark.emulated
def test_the_reference_turns_each_pair_by_its_own_axis() -> None:
    torch = importlib.import_module("torch")
    op = importlib.import_module("runners.releases.reference.operations")
    rounding = importlib.import_module("runners.releases.reference.rounding")
    by = rounding.Rounding(torch.float32, on_gpu=False, seed=1)
    cos_sin = torch.arange(10.0, dtype=torch.float64)[:, None] + torch.arange(8) / 10  # position, then pair
    cos, sin = op.angles(by, cos_sin, torch.tensor([[1, 2, 3], [4, 5, 6]]), (0, 0, 1, 2))
    assert torch.allclose(cos[0, :, 0], torch.tensor([[1.0, 1.1, 2.2, 3.3], [4.0, 4.1, 5.2, 6.3]]).double())
    assert torch.allclose(sin[0, :, 0], torch.tensor([[1.4, 1.5, 2.6, 3.7], [4.4, 4.5, 5.6, 6.7]]).double())
    same, _ = op.angles(by, cos_sin, torch.tensor([[7, 7, 7]]), (0, 0, 1, 2))
    plain, _ = op.angles(by, cos_sin, torch.tensor([7]))
    assert torch.allclose(same, plain)


# Of the newest release: function, statement, what takes its place, and the failures that follow.
_DRAFT, _EXTEND = (
    (f"sglang/srt/speculative/{file}_cuda_graph_runner.py", f"{runner}CudaGraphRunner.execute")
    for file, runner in (("eagle_draft", "EAGLEDraft"), ("eagle_draft_extend", "EAGLEDraftExtend"))
)
_WORKER = ("sglang/srt/speculative/eagle_worker_v2.py", "EagleDraftWorker.draft_forward")
_IS_GIVEN, _ZEROED = "if forward_batch.mrope_positions is not None:", "buffers.mrope_positions.zero_()"
_ADVANCED = "forward_batch.mrope_positions.add_(1)"
PLANTED = {
    "draft, not staged": ("draft", *_DRAFT, _IS_GIVEN, "if False:", ("staged", "real rows of mrope_positions")),
    "draft_extend, not staged": (
        *("draft_extend", *_EXTEND, _IS_GIVEN, "if False:"),
        ("staged", "real rows of mrope_positions"),
    ),
    "draft, stale padding": ("draft", *_DRAFT, _ZEROED, "pass", ("slot0_padding", "padded rows of mrope_positions")),
    "draft_extend, stale padding": (
        *("draft_extend", *_EXTEND, _ZEROED, "pass"),
        ("slot0_padding", "padded rows of mrope_positions"),
    ),
    "draft, not advanced": (
        *("draft", *_WORKER, _ADVANCED, "pass"),
        ("reference", "wrong values"),
    ),
    "draft, advanced by two": (
        *("draft", *_WORKER, _ADVANCED, "forward_batch.mrope_positions.add_(2)"),
        ("reference", "wrong values"),
    ),
}


def own(runner: str) -> Setup:
    return setup_of(runner, algorithm="EAGLE3", mrope=True)


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name.endswith("not staged") else pytest.mark.exhaustive) for name in PLANTED],
)
def test_each_place_is_watched(name: str, newest: Pool) -> None:
    runner, file, function, old, new, failure = PLANTED[name]
    case = case_of(own(runner), FULL, PADDED, SINGLE)
    every = mutants(file, (sglang_path(TARGET) / file).read_text())
    planted = next(m for m in every if (m.function, m.old, m.new) == (function, old, new))
    newest.change({"edit": planted.change()})
    trace = newest.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    failing = {(v.oracle, v.where) for v in judge_all(case, trace) if v.status is Status.FAIL}
    assert failure in failing


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("runner", ["draft", "draft_extend"])
def test_the_newest_release_is_right(runner: str, newest: Pool) -> None:
    case = case_of(own(runner), FULL, PADDED, SINGLE)
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    assert "reference" not in trace.facts
    assert any(array.any() for name, array in trace.path(0, "reference").items() if name.startswith("kv_rows"))
