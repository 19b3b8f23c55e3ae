"""The cases of a campaign, as an endless sequence that depends on the seed number alone.

Hypothesis interprets bytes that are derived from the seed and the case's place in the campaign. Its usual way of
running a test also mixes in constants found in the modules that happen to be loaded, so that the same seed could
mean other cases elsewhere; here no case depends on another case, on a target's answer or on the process.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.strategies import cases, setups
from fuzz.swarm import SMALL, swarms
from repro.case import Case
from repro.codec import digest

T = TypeVar("T")

# Bytes for one example: twice what Hypothesis lets one use. Six calls of eight requests take about 500.
BYTES = 1 << 14
# Rounds at the start that are small whatever their swarm says: what they find is found, and shrunk, soonest.
SMALL_ROUNDS = 3
# After so many draws that gave only known cases, the setup has no more to offer and the round ends early.
REPEATS_MAX = 50


def examples(strategy: st.SearchStrategy[T]) -> Callable[[str], T]:
    """A function from names to values of this strategy: the same name gives the same value for ever (as long as
    neither the strategy nor Hypothesis's reading of bytes changes)."""
    drawn: list[T] = []

    @settings(database=None, deadline=None)
    @given(strategy)
    def collect(value: T) -> None:
        drawn.append(value)

    feed = collect.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def example(name: str) -> T:
        drawn.clear()
        feed(hashlib.shake_256(name.encode()).digest(BYTES))
        if not drawn:
            raise ValueError(f"{strategy} gave no value: it filters, or wants more than Hypothesis allows")
        return drawn[0]

    return example


def rounds(seed: int, runner: str, backend: str, cases_per_setup: int) -> Iterator[Case]:
    """Round after round for ever."""
    for number in itertools.count():
        yield from round_cases(seed, number, runner, backend, cases_per_setup)


def round_cases(seed: int, number: int, runner: str, backend: str, cases_per_setup: int) -> Iterator[Case]:
    """One round: a swarm, a setup under it, then so many different cases on that setup."""
    here = f"eagleeye {seed} {number}"
    swarm = examples(swarms())(f"{here} swarm")
    if number < SMALL_ROUNDS:
        swarm = replace(swarm, size=SMALL)
    setup = examples(setups(runner, backend, swarm))(f"{here} setup")
    yield from different(here, cases(setup, swarm), cases_per_setup)


def different(name: str, strategy: st.SearchStrategy[Case], count: int) -> Iterator[Case]:
    """Up to `count` cases, no two alike."""
    example = examples(strategy)
    seen: set[str] = set()
    repeats = number = 0
    while len(seen) < count and repeats < REPEATS_MAX:
        case = example(f"{name} case {number}")
        number += 1
        if digest(case) in seen:
            repeats += 1
            continue
        seen.add(digest(case))
        yield case
