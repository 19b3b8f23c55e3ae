"""Traces for the tests of oracles and toy: a Watch that keeps what it is told, cases drawn from a seed, and a way to
change one array of a sound trace."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from repro.cases.case import DATA_MAX, Case, Request, Setup, Step, Target, problems, seq_len_max, setup_problems
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.traces.paths import PATHS
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from runners.recording.observer import Watch
from runners.toy.session import open_session

# Oracles of runs that the toy has nothing of; each has a test of its own, by its name.
OF_OTHERS = {row.oracle for row in PATHS if row.oracle and TOY not in row.engines}
OF_OTHERS |= {name for facts in RUNNER_FACTS.values() for name in facts.own_oracles} | {"probes", "row_width"}


@dataclass
class Keeper(Watch):
    """A Watch that keeps everything in memory."""

    seen: list[RecordedArray] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    here: tuple[int, str] = (-1, "")

    def at(self, step: int, path: str) -> None:
        self.here = (step, path)

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        self.seen.append(RecordedArray(step=step, path=path, name=name, array=np.array(array)))

    def spent(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def fact(self, name: str, text: str) -> None:
        self.facts[name] = text


def toy_trace(case: Case, bug: str = "clean") -> Trace:
    """Run a case on the toy, in this process, and keep its trace."""
    keeper = Keeper()
    ended = End(how=Termination.DONE)
    try:
        open_session(case.setup, Target(bug, "toy"), keeper)(case, keeper)
    except Exception as error:  # becomes RAISED, as in the worker
        step, path = keeper.here
        what, detail = type(error).__name__, traceback.format_exc()
        ended = End(how=Termination.RAISED, step=step, path=path, what=what, detail=detail)
    return Trace(ended=ended, seen=tuple(keeper.seen), facts=keeper.facts, seconds=keeper.seconds)


def changed(trace: Trace, step: int, path: str, name: str, change: Callable[[Array], Any]) -> Trace:
    """The trace with one array replaced by what `change` makes of a copy of it; removed if that is None."""
    assert trace.get(step, path, name) is not None, f"nothing recorded under {(step, path, name)}"
    seen = []
    for entry in trace.seen:
        if (entry.step, entry.path, entry.name) == (step, path, name):
            array = change(entry.array.copy())
            if array is not None:
                seen.append(replace(entry, array=np.asarray(array)))
        else:
            seen.append(entry)
    return replace(trace, seen=tuple(seen))


def put(index: Any, value: Any) -> Callable[[Array], Array]:
    """A change: set one element or row."""

    def change(array: Array) -> Array:
        array[index] = value
        return array

    return change


def drawn_cases(count: int, *, seed: int) -> list[Case]:
    """Valid cases over the whole domain of small setups, always the same for the same seed."""
    rng = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        setup = _drawn_setup(rng)
        if setup_problems(setup) or seq_len_max(setup) < 1:
            continue
        steps = tuple(_drawn_step(rng, setup) for _ in range(rng.randint(1, 5)))
        case = Case(setup=setup, steps=steps)
        assert not problems(case)
        cases.append(case)
    return cases


def _drawn_setup(rng: random.Random) -> Setup:
    topk, num_steps = rng.randint(1, 8), rng.randint(2, 6)
    candidates = topk + (num_steps - 1) * topk**2
    buckets = tuple(sorted(rng.sample(range(1, 9), rng.randint(1, 3))))
    return Setup(
        runner="toy",
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=num_steps + 1 if topk == 1 else rng.randint(2, min(candidates + 1, 24)),
        capture_bs=buckets,
        slots=buckets[-1] + rng.randint(0, 3),
        page_size=rng.choice([1, 1, 1, 2, 4, 16]),
        context_len=rng.choice([32, 64, 128]),
        hidden_size=rng.choice([8, 32]),
    )


def _drawn_step(rng: random.Random, setup: Setup) -> Step:
    slots = rng.sample(range(1, setup.slots + 1), rng.randint(1, setup.max_bs))
    longest = seq_len_max(setup)
    return Step(
        requests=tuple(
            Request(slot=slot, seq_len=rng.randint(1, longest), data=rng.randint(0, DATA_MAX)) for slot in slots
        )
    )
