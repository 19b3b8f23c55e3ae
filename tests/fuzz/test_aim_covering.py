"""--set: cases are drawn without a refusal for any valid combination of options, and for the sizes of real servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from fuzz.aiming import Asked, pairs
from fuzz.draw.aim import smallest
from fuzz.draw.rounds import rounds
from repro.cases.case import problems
from repro.cases.options import OPTION, PAGE_SIZES
from repro.cases.runner_facts import RUNNER_FACTS, TOY

# Further values of what a server sets and campaigns seldom draw.
VALUES: dict[str, tuple[Any, ...]] = {
    "topk": (1, 2, 5, 10),
    "num_steps": (1, 2, 5, 20),
    "page_size": PAGE_SIZES,
    "context_len": (64, 500, 2048, 8192),
    "capture_bs": ((1,), (1, 2, 4, 8), (160,), (1, 256)),
    "slots": (8, 100, 256),
    "num_draft_tokens": (2, 4, 8, 33),
    "window": (1, 128, 1024),
    "adaptive": (1, 3, 5),
}
REAL = [
    {"max_bs": 256},
    {"context_len": 8192, "page_size": 128},
    {"context_len": 8192, "page_size": 128, "topk": 4, "num_steps": 5, "num_draft_tokens": 8, "max_bs": 256},
]
NAMED = ("runner", "backend", "vocab_size", "hidden_size")


def sample(runner: str, backend: str, count: int) -> Iterator[dict[str, Any]]:
    """Valid combinations: each value of each option in one of them at least, if it can be had at all, beside as many
    others as fit, in a random order."""
    random = Random(f"{runner} {backend}")
    every = [(name, value) for name, option in OPTION.items() for value in VALUES.get(name, option.drawn)]
    values = [(name, value) for name, value in dict.fromkeys(every) if name not in NAMED]
    waiting = random.sample(values, len(values))
    for _ in range(count):
        chosen: dict[str, Any] = {}
        for name, value in [*waiting, *random.sample(values, 6)]:
            if len(chosen) < 5 and name not in chosen and smallest(runner, backend, (*chosen.items(), (name, value))):
                chosen[name] = value
        waiting = [pair for pair in waiting if pair not in chosen.items()]
        yield chosen


PAIRS = [(name, backend) for name, facts in RUNNER_FACTS.items() if name != TOY for backend in facts.backends]
FIRST = [(name, backend) for name, backend in PAIRS if backend == RUNNER_FACTS[name].backends[0]]


def draws(request: Asked, runner: str, backend: str, count: int, cases_per_setup: int = 16) -> None:
    every = rounds(5, *next(pairs(request, runner, backend)), cases_per_setup, aim=request.aim)
    drawn = list(itertools.islice(every, count))
    assert len(drawn) == count
    for case in drawn:
        assert problems(case) == [] and request.aim.fits(case.setup)


@pytest.mark.parametrize(("runner", "backend"), FIRST, ids=["/".join(pair) for pair in FIRST])
def test_valid_combinations_are_drawn(runner: str, backend: str) -> None:
    for values in sample(runner, backend, 1):
        draws(Asked(values=values), runner, backend, 20)


# Begins with the combinations of the test above, a few of each runner's first backend.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("runner", "backend"), PAIRS, ids=["/".join(pair) for pair in PAIRS])
def test_any_valid_combination_draws_as_many_setups_as_a_thousand_cases_have(runner: str, backend: str) -> None:
    """A combination is in the way of setups, so that four cases on each are enough."""
    for values in sample(runner, backend, 2):
        draws(Asked(values=values), runner, backend, 78 * 4, cases_per_setup=4)


@pytest.mark.parametrize("values", REAL, ids=str)
@pytest.mark.parametrize(
    ("runner", "backend"), [("draft", "triton"), ("draft_extend", "fa3"), ("decode", "flashinfer")]
)
def test_a_servers_real_sizes_are_drawn(values: dict[str, Any], runner: str, backend: str) -> None:
    drafts = () if RUNNER_FACTS[runner].speculative else ("topk", "num_steps", "num_draft_tokens")
    fixed = {name: value for name, value in values.items() if name not in ("max_bs", *drafts)}
    request = Asked(values=fixed, max_bs=values.get("max_bs", 0))
    draws(request, runner, backend, 40)
