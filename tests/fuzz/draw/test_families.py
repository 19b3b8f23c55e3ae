"""Families of models: what draws a family draws sizes that sglang's kernels take on a GPU, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuzz.draw.aim import aim_of_values
from fuzz.draw.covering import rows
from fuzz.draw.rounds import FAMILY_ROUNDS, SHORT_ROUNDS, examples, round_setup
from fuzz.draw.states import is_drawn
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING, LONG, SMALL, WIDE, Swarm
from fuzz.mutation.directed import setups as written
from repro.cases.case import Case, Request, Setup, Step, setup_problems
from repro.cases.codec import case_from_json, case_to_json, digest
from repro.cases.families import (
    DEEPSEEK,
    FAMILY_FACTS,
    GDN,
    GLM,
    GPT_OSS,
    MAMBA2,
    QWEN35,
    families,
    fitted,
    is_latent,
)
from repro.cases.runner_facts import RUNNER_FACTS
from runners.conformance.jobs import jobs

DRAFT = Setup(runner="draft", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2), slots=3, num_heads=3)
LATENT = FAMILY_FACTS[DEEPSEEK]
PAIRS = [
    (name, runner, backend)
    for name, facts in FAMILY_FACTS.items()
    for runner, backends in facts.backends.items()
    for backend in backends
]


def is_taken(setup: Setup) -> bool:
    """True if sglang's kernels/ops/layernorm/fused_eh_norm.py takes these sizes."""
    return setup.dtype in ("float16", "bfloat16") and 256 < setup.hidden_size <= 8192 and setup.hidden_size % 256 == 0


def latent_of(setups_of: list[Setup]) -> list[Setup]:
    return [setup for setup in setups_of if is_latent(setup)]


@pytest.mark.parametrize("runner", ["draft", "draft_extend"])
def test_sizes_that_the_algorithm_implies_are_taken(runner: str) -> None:
    swarms = [Swarm(size=size) for size in (SMALL, WIDE, LONG)] + [EVERYTHING]
    for swarm in swarms:
        draw = examples(setups(runner, "triton", swarm))
        latent = latent_of([draw(f"setup {number}") for number in range(40)])
        assert latent
        assert all(map(is_taken, latent))
        assert not any(map(setup_problems, latent))


def test_written_setups_and_jobs_are_taken() -> None:
    for latent in (latent_of(written("draft", "triton")), latent_of([job.case.setup for job in jobs()])):
        assert latent
        assert all(map(is_taken, latent))


@pytest.mark.parametrize(("name", "runner", "backend"), PAIRS)
def test_a_family_is_drawn_where_it_is_asked_for(name: str, runner: str, backend: str) -> None:
    aim = aim_of_values({"family": name})
    drawn = [round_setup(1, number, runner, backend, aim)[1] for number in range(12)]
    assert {setup.family for setup in drawn} == {name}
    assert not any(map(setup_problems, drawn))
    assert all(map(is_taken, latent_of(drawn)))
    assert len(set(drawn)) > 6


def test_a_family_is_refused_where_it_is_not_driven() -> None:
    assert families("draft", "fa3") == (DEEPSEEK, GLM, GDN, QWEN35)
    assert families("decode", "fa3") == (DEEPSEEK, GLM, GDN, QWEN35, GPT_OSS)
    assert families("draft_extend", "flashinfer") == (GLM, GDN, QWEN35)
    over_fa3 = fitted(replace(DRAFT, backend="fa3", family=DEEPSEEK, head_dim=64, num_kv_heads=3))
    assert not setup_problems(over_fa3)
    refused: dict[str, dict[str, Any]] = {
        "the kv_move runner over triton has no deepseek_v3 models": {"runner": "kv_move"},
        "the EAGLE3 algorithm has no deepseek_v3 models": {"algorithm": "EAGLE3"},
        "a family other than Llama has no logit cap": {"logit_cap": 5},
        f"model_type 'mamba' is not one of {', '.join(FAMILY_FACTS)}": {"family": "mamba"},
    }
    for words, changes in refused.items():
        setup = replace(fitted(replace(DRAFT, family=DEEPSEEK)), **changes)
        assert any(words in problem for problem in setup_problems(setup)), setup_problems(setup)


def test_a_family_is_written_where_it_is_named() -> None:
    plain = Case(setup=DRAFT, steps=(Step(requests=(Request(slot=1, seq_len=2, data=1),)),))
    assert "family" not in str(case_to_json(plain))
    named = replace(plain, setup=fitted(replace(DRAFT, family=DEEPSEEK)))
    assert case_from_json(case_to_json(named)) == named
    assert digest(named) != digest(plain)


def test_rows_name_runners_that_there_are() -> None:
    assert {runner for _, runner, _ in PAIRS} <= set(RUNNER_FACTS)
    assert all(backend in RUNNER_FACTS[runner].backends for _, runner, backend in PAIRS)


def test_only_what_other_models_had_is_fitted() -> None:
    assert fitted(DRAFT) == DRAFT
    for other in (fitted(replace(DRAFT, algorithm="NEXTN")), fitted(replace(DRAFT, family=DEEPSEEK))):
        assert (other.hidden_size, other.dtype) == (768, "float16")
    kept = replace(DRAFT, algorithm="NEXTN", dtype="bfloat16", num_heads=1)
    assert fitted(kept) == replace(kept, hidden_size=LATENT.hidden_sizes[0])


@pytest.mark.parametrize(("runner", "backend"), dict.fromkeys((runner, backend) for _, runner, backend in PAIRS))
def test_ordinary_campaigns_meet_every_family(runner: str, backend: str) -> None:
    count = max(SHORT_ROUNDS, FAMILY_ROUNDS * len(families(runner, backend)))
    first = [round_setup(1, number, runner, backend)[1] for number in range(count)]
    assert not any(map(setup_problems, first)) and all(map(is_drawn, first))
    assert all(map(is_taken, latent_of(first)))
    assert {setup.family for setup in first} == {"", *families(runner, backend)}
    assert sum(setup.family != "" for setup in first) * FAMILY_ROUNDS == count


def test_families_leave_all_other_rounds_their_states() -> None:
    planned = [row.kind.topk > 1 for row in rows("verify", "triton", "eagleeye 1 verify triton cycle 0")]
    drawn = [round_setup(1, number, "verify", "triton")[1] for number in range(2 * len(planned))]
    assert [setup.topk > 1 for setup in drawn if not setup.family][: len(planned)] == planned


def test_an_aim_has_the_families_that_can_have_it() -> None:
    count = max(SHORT_ROUNDS, FAMILY_ROUNDS * len(families("decode", "triton")))

    def drawn(**values: Any) -> set[str]:
        aim = aim_of_values(values)
        every = [round_setup(1, number, "decode", "triton", aim)[1] for number in range(count)]
        assert all(map(aim.fits, every)) and not any(map(setup_problems, every))
        return {setup.family for setup in every}

    assert drawn(family="") == {""}  # --without model_type
    assert drawn(family=GDN) == {GDN}
    assert drawn(page_size=4) == {"", *families("decode", "triton")}
    assert drawn(logit_cap=5) == {""}
    assert drawn(hidden_size=48) == {
        "",
        *(name for name in families("decode", "triton") if name in (GDN, QWEN35, MAMBA2, GPT_OSS)),
    }
