"""The cases of a seed number: a change of them is for users to know (CHANGELOG.md), so that none happens unseen."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from fuzz.draw.rounds import rounds
from repro.cases import codec

# Runner and backend, and what the digests of the first cases of seed 11 come to.
DRAWN = {
    ("draft", "triton"): "301051446594",
    ("decode", "flashinfer"): "cb3e306d61e8",
    ("verify", "fa3"): "c0b5ba30f650",
    ("multi_layer", "triton"): "3af1d9a0437f",
}


@pytest.mark.parametrize("pair", DRAWN, ids="/".join)
def test_a_seed_number_draws_the_cases_that_it_drew_before(pair: tuple[str, str]) -> None:
    digests = [codec.digest(case) for case in itertools.islice(rounds(11, *pair, 8), 24)]
    text = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:12]
    assert text == DRAWN[pair], "say in CHANGELOG.md that drawn cases are others, and put this number here"


def test_some_retractions_come_in_iterations_without_a_prefill() -> None:
    cases = itertools.islice(rounds(11, "round", "triton", 8), 60)
    retracting = [step for case in cases for step in case.steps if step.happens == "retract"]
    assert {bool(step.requests) for step in retracting} == {True, False}


def test_some_pools_may_fill() -> None:
    setups = {case.setup for case in itertools.islice(rounds(11, "round", "triton", 8), 60)}
    assert any(setup.heeds_eos and setup.pool and setup.slots > 1 for setup in setups)
