"""The jobs of a conformance run: one small case for each runner, backend and algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup, Step, accepted_max
from repro.cases.families import FAMILY_FACTS, fitted
from repro.cases.runner_facts import IN_BLOCKS, LATENT, RUNNER_FACTS, TOY, WITHOUT_STEPS

# Two requests, then one in the same bucket: every buffer is filled, staged and padded, and stale state would show.
_BATCHES = (((1, 5), (2, 9)), ((3, 6),))
_SLOTS, _BUCKETS = 4, (2,)
_LATER = 10  # iterations of an event loop, in which the first requests end


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One line of a conformance table. algorithm: or the family, or ONE_GRAPH, where the case names such."""

    runner: str
    backend: str
    algorithm: str
    case: Case

    @property
    def key(self) -> tuple[str, str, str]:
        return self.runner, self.backend, self.algorithm

    def __str__(self) -> str:
        return " ".join(self.key)


def jobs() -> tuple[Job, ...]:
    """One job for every runner, backend and algorithm that there is."""
    return tuple(
        Job(runner=runner, backend=backend, algorithm=algorithm, case=_case(runner, backend, algorithm))
        for runner, facts in RUNNER_FACTS.items()
        if runner != TOY
        for backend in facts.backends
        for algorithm in facts.algorithms
        if BACKEND_FACTS[backend].latent or algorithm not in LATENT
    )


ONE_GRAPH = "one graph of all layers"


def family_jobs() -> tuple[Job, ...]:
    """One job for every runner and backend that a family of models is driven with, and that drafts with all layers in
    one graph."""
    layered = [
        Job(runner=runner, backend=backend, algorithm=ONE_GRAPH, case=_case(runner, backend, "EAGLE", one_graph=True))
        for runner, facts in RUNNER_FACTS.items()
        for backend in facts.backends
        if facts.layered and BACKEND_FACTS[backend].combines_layers
    ]
    return (*_of_families(), *layered)


def _of_families() -> tuple[Job, ...]:
    return tuple(
        Job(runner=runner, backend=backend, algorithm=name, case=_case(runner, backend, facts.algorithms[0], name))
        for name, facts in FAMILY_FACTS.items()
        for runner, backends in facts.backends.items()
        for backend in backends
    )


def _case(runner: str, backend: str, algorithm: str, family: str = "", *, one_graph: bool = False) -> Case:
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    stepless = algorithm in WITHOUT_STEPS  # of any number of tokens
    num_steps = 3 if facts.speculative and not stepless else 1
    # With branches only where all releases have them.
    topk = 2 if facts.trees or (facts.speculative and facts.branches and not facts.branches_since) else 1
    if kernels.chains or algorithm in IN_BLOCKS or (family and backend in FAMILY_FACTS[family].chains):
        topk = 1
    setup = Setup(
        runner=runner,
        backend=backend,
        algorithm=algorithm,
        family=family,
        one_graph=one_graph,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=4 if topk > 1 or stepless else num_steps + 1,
        capture_bs=_BUCKETS,
        slots=_SLOTS,
        # Branches move rows only where there are pages.
        page_size=4 if facts.light else min(kernels.page_sizes, default=1),
        dtype=kernels.drawn_dtypes[0],
        head_dim=kernels.drawn_head_dims[0],
    )
    accepted = min(1, accepted_max(setup))
    further = 6 if facts.serves else 0
    steps = tuple(
        Step(
            requests=tuple(
                Request(slot=slot, seq_len=seq_len, data=10 * number + slot, accepted=accepted, further=further)
                for slot, seq_len in batch
            ),
            wait=_LATER * number if facts.serves else 0,
        )
        for number, batch in enumerate(_BATCHES)
    )
    return Case(setup=fitted(setup), steps=steps)
