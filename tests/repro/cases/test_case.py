"""Validity of a case: each mistake is named, with its place; and the texts of a case and a target."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from repro.cases.case import (
    DATA_MAX,
    LAYOUTS_MAX,
    STEPS_MAX,
    Case,
    Request,
    Setup,
    Step,
    Target,
    engine_refuses,
    problems,
)
from repro.cases.codec import AboutValue, Seed
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.words import paragraph

SETUP = Setup(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)
ROWS = (Request(slot=1, seq_len=7, data=3), Request(slot=5, seq_len=9, data=4))
CASE = Case(setup=SETUP, steps=(Step(requests=ROWS), Step(requests=ROWS[:1])))


def with_step(**changes: Any) -> Case:
    return replace(CASE, steps=(CASE.steps[0], replace(CASE.steps[1], **changes)))


def with_row(**changes: Any) -> Case:
    return with_step(requests=(ROWS[0], replace(ROWS[1], **changes)))


def test_a_sound_case_has_no_problems() -> None:
    assert problems(CASE) == []


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (replace(CASE, steps=()), f"a case has 1..{STEPS_MAX} steps, not 0"),
        (replace(CASE, steps=CASE.steps * STEPS_MAX), f"a case has 1..{STEPS_MAX} steps, not {2 * STEPS_MAX}"),
        (replace(CASE, steps=(Step(requests=()),)), "no step has a request"),
        (with_step(hidden="some"), "step 1: capture_hidden_mode 'some' is nothing that the decode runner is asked for"),
        (with_step(layout=LAYOUTS_MAX + 1), f"step 1: layout {LAYOUTS_MAX + 1} is outside 0..{LAYOUTS_MAX}"),
        (with_step(layout=-1), f"step 1: layout -1 is outside 0..{LAYOUTS_MAX}"),
        (with_step(requests=ROWS * 4), "step 1: 8 requests do not fit buckets (2, 4)"),
        (with_row(slot=1), "step 1: a slot is used twice in [1, 1]"),
        (with_row(slot=0), "step 1 request 1: req_pool_idx 0 is outside 1..6"),
        (with_row(slot=7), "step 1 request 1: req_pool_idx 7 is outside 1..6"),
        (with_row(seq_len=0), "step 1 request 1: seq_len 0 is outside 1.."),
        (with_row(seq_len=10**6), "step 1 request 1: seq_len 1000000 is outside 1.."),
        (with_row(data=-1), f"step 1 request 1: data -1 is outside 0..{DATA_MAX}"),
        (with_row(accepted=1), "step 1 request 1: num_correct_drafts 1 is outside 0..0"),
        (replace(CASE, setup=replace(SETUP, slots=3)), "exceeds max_running_requests 3"),
    ],
)
def test_each_mistake_is_said_with_its_place(case: Case, text: str) -> None:
    texts = problems(case)
    assert any(text in each for each in texts), texts


def test_a_runner_that_reads_lengths_on_the_host_has_them_in_every_step() -> None:
    assert RUNNER_FACTS["frozen_kv_mtp"].host_lengths
    sound = replace(CASE, setup=replace(SETUP, runner="frozen_kv_mtp", num_steps=3, num_draft_tokens=4))
    assert problems(sound) == []
    lacking = replace(sound, steps=(sound.steps[0], replace(sound.steps[1], mirrored=False)))
    assert problems(lacking) == ["the frozen_kv_mtp runner's batches have lengths on the host"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.5.13", "expected RELEASE/ENGINE or PATH@ENGINE"),
        ("/emulated", "expected RELEASE/ENGINE or PATH@ENGINE"),
        ("0.5.13/gpu", "with an engine of"),
        ("0.5.13@emulated", "a checkout is named by a path, a release as 0.5.13/emulated"),
        ("/src/python/emulated", "a checkout is written PATH@ENGINE"),
    ],
)
def test_what_is_no_target_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Target.parse(text)


@pytest.mark.parametrize("text", ["0.5.13/emulated", "/src/python@cuda", "clean/toy"])
def test_a_target_is_read_as_it_is_written(text: str) -> None:
    assert str(Target.parse(text)) == text


def test_a_batch_takes_the_smallest_bucket_that_holds_it() -> None:
    assert [SETUP.bucket(batch) for batch in (1, 2, 3, 4)] == [2, 2, 4, 4]
    with pytest.raises(ValueError, match=r"a batch of 5 fits no bucket of \(2, 4\)"):
        SETUP.bucket(5)


@pytest.mark.parametrize(
    ("setup", "engine", "why"),
    [
        (replace(SETUP, backend="flashinfer", deterministic=True), "emulated", "nothing of deterministic inference"),
        (replace(SETUP, deterministic=True), "emulated", "^$"),
        (replace(SETUP, backend="intel_amx"), "cuda", "runs on a CPU, not on the cuda engine"),
        (replace(SETUP, dtype="bfloat16"), "emulated", "no bfloat16 arithmetic"),
        (replace(SETUP, dtype="bfloat16"), "cuda", "^$"),
        (SETUP, "emulated", "^$"),
    ],
)
def test_an_engine_says_what_it_cannot_run(setup: Setup, engine: str, why: str) -> None:
    assert re.search(why, engine_refuses(setup, engine))


def test_a_seed_in_words_says_all_that_is_unusual() -> None:
    setup = replace(SETUP, window=7, swa=True, returns_hidden=True, deterministic=True, logit_cap=30, padded=False)
    setup = replace(setup, mirrored=False, overhang=1)
    steps = (Step(requests=ROWS, mirrored=False, hidden="last", layout=2), Step(requests=ROWS[:1]))
    about: dict[str, AboutValue] = {"oracle": "bucket", "seen": ("once", "twice"), "expected": {"0.5.13": "PASS"}}
    lines = list(paragraph(Seed(about=about, case=Case(setup=setup, steps=steps))))
    options = next(line for line in lines if line.startswith("options: "))
    for text in (
        "a window of 7 tokens",
        "graphs with hidden states",
        "positions behind the context: 1",
        "no batch padded",
    ):
        assert text in options
    assert "step 0: 2 requests in bucket 2, full, lengths on the device alone, with hidden states: last" in "\n".join(
        lines
    )
    assert "step 1: 1 request in no bucket, for eager" in lines
    assert lines[-6:] == ["oracle: bucket", "seen:", "  once", "  twice", "expected:", "  0.5.13: PASS"]
