"""Rounds of a model with positions in three dimensions and prompts with images, on the newest release, clean and with
planted bugs."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from fuzz.draw.aim import aim_of_values
from fuzz.draw.rounds import round_setup
from oracles import kv_rows, logits, rounds, staged
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, problems
from repro.cases.families import QWEN_VL
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import launched
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.runners.releases.test_round import CHAIN, HAPPENING, STEPS, TREE
from tests.runners.releases.test_round_plants import OF_TEXT, Plant, assert_seen

SEEING = replace(CHAIN, family=QWEN_VL, algorithm="EAGLE3", mrope=True, images=True)
SETUPS = {
    "text alone, in one dimension in the draft": replace(SEEING, images=False, mrope=False, overlap=True),
    "a tree of drafts": replace(SEEING, topk=TREE.topk, num_draft_tokens=TREE.num_draft_tokens),
    "another size of heads, and a prompt that begins as another": replace(SEEING, radix=True, head_dim=32),
}
BATCH = "sglang/srt/model_executor/forward_batch_info.py"
WORKER = "sglang/srt/speculative/eagle_worker_v2.py"
PLANTS = {
    "verify turns text behind an image by its place": Plant(
        file=BATCH,
        function="ForwardBatch.compute_spec_mrope_positions",
        old="(seq_positions + mrope_delta_tensor)",
        new="(seq_positions + 0 * mrope_delta_tensor)",
        setup=SEEING,
        seen_by=OF_TEXT,
    ),
    "an image has its first token's positions": Plant(
        file=BATCH,
        function="ForwardBatch._compute_mrope_positions_extend",
        old="mrope_positions = mm_input.mrope_positions[",
        new="mrope_positions = mm_input.mrope_positions[:1].expand(3, -1)[",
        setup=SEEING,
        seen_by=((logits.ORACLE, logits.OFF),),
    ),
    "the draft's prefill is given an image a token late": Plant(
        file=WORKER,
        function="EagleDraftWorker._draft_extend_for_prefill",
        old="mm_input_embeds[pt + 1 : pt + extend_len]",
        new="mm_input_embeds[pt : pt + extend_len - 1]",
        setup=SEEING,
        seen_by=((kv_rows.ORACLE, "rows of the draft"),),
    ),
    "positions do not reach the draft's graph": Plant(
        file="sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
        function="EAGLEDraftCudaGraphRunner.execute",
        old="                copy_srcs.append(forward_batch.mrope_positions)",
        new="                copy_srcs.append(0 * forward_batch.mrope_positions)",
        setup=replace(SEEING, images=False),
        seen_by=((staged.ORACLE, "real rows of mrope_positions"), (rounds.ORACLE, "draft drafted")),
    ),
}


def test_a_verify_has_no_draft_model() -> None:
    assert launched(SEEING, "draft").mrope and not launched(SEEING, "verify").mrope
    assert not launched(SEEING, "verify").images


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "", "mrope": False}, "these models take no images"),
        (
            {"family": "", "images": False},
            "drafts have three-dimensional positions where the target has them",
        ),
        ({"algorithm": "EAGLE", "mrope": False}, "the EAGLE algorithm has no qwen2_5_vl models"),
    ],
)
def test_a_server_that_is_not_driven_is_refused(changes: dict[str, object], words: str) -> None:
    setup: Any = replace(SEEING, **changes)  # type: ignore[arg-type]  # the values of any field
    assert any(words in problem for problem in problems(Case(setup=setup, steps=STEPS)))


def test_images_are_drawn_and_stored() -> None:
    drawn = [round_setup(1, number, "round", "triton", aim_of_values({"family": QWEN_VL}))[1] for number in range(12)]
    assert {setup.images for setup in drawn} == {setup.mrope for setup in drawn} == {True, False}
    case = Case(setup=SEEING, steps=STEPS)
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=case))).case == case


@pytest.mark.emulated
def test_an_image_has_rows_and_columns_and_text_goes_on_behind_its_larger_side() -> None:
    torch: Any = importlib.import_module("torch")
    images: Any = importlib.import_module("runners.releases.options.images")
    image = images.Image(first=2, rows=2, columns=3, embeddings=torch.zeros(6, 4))
    assert image.positions(10).T.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert image.delta == -3
    table = torch.arange(128.0 * 32).view(128, 32)
    of_case = images.images_of(Case(setup=SEEING, steps=STEPS), table)
    assert set(of_case) <= {(0, 0), (0, 2), (1, 0)} and (1, 0) in of_case
    assert not images.images_of(Case(setup=replace(SEEING, images=False), steps=STEPS), table)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    setup = SETUPS[name]
    case = Case(setup=setup, steps=HAPPENING[3:] if setup.radix else STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
