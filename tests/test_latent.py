"""Models with latent attention: whatever draws them draws sizes that sglang's kernels take on a GPU, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING, LONG, SMALL, WIDE, Swarm
from fuzz.mutation.directed import setups as written
from repro.cases.case import Setup, setup_problems
from repro.cases.latent import LATENT_DTYPES, LATENT_HIDDEN_SIZES, fitted
from repro.cases.runner_facts import LATENT
from runners.conformance.jobs import jobs

DRAFT = Setup(runner="draft", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2), slots=3, num_heads=3)


def is_taken(setup: Setup) -> bool:
    """True if sglang's kernels/ops/layernorm/fused_eh_norm.py takes these sizes."""
    return setup.dtype in ("float16", "bfloat16") and 256 < setup.hidden_size <= 8192 and setup.hidden_size % 256 == 0


def drawn(setups_of: list[Setup]) -> list[Setup]:
    return [setup for setup in setups_of if setup.algorithm in LATENT]


@pytest.mark.parametrize("runner", ["draft", "draft_extend"])
def test_what_is_drawn_is_taken(runner: str) -> None:
    swarms = [Swarm(size=size) for size in (SMALL, WIDE, LONG)] + [EVERYTHING]
    for swarm in swarms:
        draw = examples(setups(runner, "triton", swarm))
        latent = drawn([draw(f"setup {number}") for number in range(40)])
        assert latent
        assert all(map(is_taken, latent))
        assert not any(map(setup_problems, latent))


def test_written_setups_and_jobs_are_taken() -> None:
    for latent in (drawn(written("draft", "triton")), drawn([job.case.setup for job in jobs()])):
        assert latent
        assert all(map(is_taken, latent))


def test_only_what_another_algorithm_had_is_fitted() -> None:
    assert fitted(DRAFT) is DRAFT
    other = fitted(replace(DRAFT, algorithm="NEXTN"))
    assert (other.hidden_size, other.dtype) == (768, "float16")
    kept = replace(other, dtype="bfloat16", num_heads=1)
    assert fitted(kept) == replace(kept, hidden_size=LATENT_HIDDEN_SIZES[0])
    assert LATENT_DTYPES[0] == "float16"
