"""Cases for a check in minutes: small setups with gaps between their buckets, and calls that leave something behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuzz.draw.rounds import different, examples
from fuzz.draw.strategies import cases, setups
from fuzz.draw.swarm import SMALL, Swarm
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case
from repro.cases.latent import fitted
from repro.cases.runner_facts import LATENT, RUNNER_FACTS, TOY

# Batches that become smaller, change hands or join: what is stale afterwards is what such bugs are made of.
MOVES = ("shrink", "one", "finish_and_reuse", "grow", "full")
_SWARM = Swarm(size=SMALL, moves=MOVES, calls_max=4, sparse=True, shuffled=True, jumps=False)
# One after the other: trees and chains, one-token pages and larger ones.
_KINDS = ((True, False), (False, True), (True, True), (False, False))


def directed(runner: str, backend: str, seed: int, number: int, count: int) -> Iterator[Case]:
    """Up to `count` cases on one setup; a setup for each number, each a kind of its own. Algorithms come in turn."""
    branching, paged = _KINDS[number % len(_KINDS)]
    swarm = replace(_SWARM, branching=branching, paged=paged)
    name = f"eagleeye check {seed} {runner} {backend} {number}"
    latent = BACKEND_FACTS[backend].latent
    algorithms = [name for name in RUNNER_FACTS[runner].algorithms if latent or name not in LATENT]
    drawn = examples(setups(runner, backend, swarm))(f"{name} setup")
    algorithm = algorithms[number % len(algorithms)]
    # Of EAGLE3's setups every second one.
    mrope = RUNNER_FACTS[runner].mrope and algorithm == "EAGLE3" and number // len(algorithms) % 2 == 0
    # Of EAGLE's chains one in two.
    is_rejecting = RUNNER_FACTS[runner].rejects and algorithm == "EAGLE" and number % 4 == 3
    rejection = is_rejecting and drawn.topk == 1 and not drawn.deterministic
    # Of all other chains every one.
    adaptive = drawn.num_steps + 1 if RUNNER_FACTS[runner].adapts and drawn.topk == 1 and not rejection else 0
    adaptive = 0 if algorithm in LATENT else adaptive
    setup = fitted(replace(drawn, algorithm=algorithm, mrope=mrope, rejection=rejection, adaptive=adaptive))
    yield from different(name, cases(setup, swarm), count)


def places() -> tuple[tuple[str, str], ...]:
    """Every runner and backend that sglang still has."""
    return tuple(
        (runner, backend)
        for runner, facts in RUNNER_FACTS.items()
        if runner != TOY and not facts.until
        for backend in facts.backends
    )
