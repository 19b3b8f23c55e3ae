"""The setup and the batches that each runner is tried with, and what the oracles say of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracles.catalogue import judge_all
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup, Step, accepted_max
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Status
from repro.traces.trace import Trace

Batch = tuple[tuple[int, int, int], ...]

# A full bucket, a padded one, and the two smaller ones: slot, seq_len and data of each request. Together they fill
# every bucket, put a short batch behind a long one in the same bucket, and use a slot again.
FULL: Batch = ((1, 9, 1), (2, 17, 2), (3, 5, 3), (4, 30, 4))
PADDED: Batch = ((5, 7, 5), (2, 11, 6), (3, 21, 7))
SINGLE: Batch = ((6, 1, 8),)
PAIR: Batch = ((4, 33, 9), (1, 2, 1))
BATCHES = (FULL, PADDED, SINGLE, PAIR)


def step(*rows: tuple[Any, ...]) -> Step:
    """A call with these requests: slot, seq_len, data and, where the runner is told of it, accepted; and greedy."""
    return Step(requests=tuple(Request(**dict(zip(_FIELDS, row, strict=False))) for row in rows))


_FIELDS = ("slot", "seq_len", "data", "accepted", "greedy")


def setup_of(runner: str, backend: str = "", **changes: Any) -> Setup:
    """A small setup of this runner: buckets of 1, 2 and 4 requests, and branches where it can have them."""
    facts = RUNNER_FACTS[runner]
    backend = backend or facts.backends[0]
    kernels = BACKEND_FACTS[backend]
    branches = facts.trees or (facts.speculative and facts.branches and not facts.branches_since)
    topk = 2 if branches and not kernels.chains else 1
    steps = 3 if facts.speculative else 1
    setup = Setup(
        runner=runner,
        backend=backend,
        topk=topk,
        num_steps=steps,
        # A tree that is no chain in disguise.
        num_draft_tokens=7 if facts.trees else steps + 1,
        # A batch that fills its bucket is not staged on a CPU, and each bucket is compiled.
        capture_bs=(5,) if facts.compiled else (1, 2, 4),
        slots=6,
        page_size=min(kernels.page_sizes, default=1),
        head_dim=kernels.drawn_head_dims[0],
        dtype=kernels.drawn_dtypes[0],
    )
    return replace(setup, **changes)


def case_of(setup: Setup, *batches: Batch) -> Case:
    """These batches, or all of BATCHES. Counts of accepted drafts, where they matter, differ from row to row."""
    most = accepted_max(setup)
    steps = tuple(
        step(*((*row, (row[0] + place) % (most + 1)) for place, row in enumerate(batch)))
        for batch in batches or BATCHES
    )
    return Case(setup=setup, steps=tuple(map(arriving, steps)) if RUNNER_FACTS[setup.runner].serves else steps)


def arriving(group: Step) -> Step:
    """The requests as arrivals: each asks for a few tokens more, and they come a little after those before."""
    requests = tuple(replace(request, further=5) for request in group.requests)
    return replace(group, requests=requests, wait=2)


def statuses(case: Case, trace: Trace) -> dict[str, Status]:
    """The worst verdict of each oracle."""
    worst: dict[str, Status] = {}
    for verdict in judge_all(case, trace):
        worst[verdict.oracle] = max(verdict.status, worst.get(verdict.oracle, verdict.status))
    return worst


def failures(case: Case, trace: Trace) -> dict[str, set[str]]:
    """The oracles that fail, and their places: one a failure."""
    places: dict[str, set[str]] = {}
    for verdict in judge_all(case, trace):
        if verdict.status is Status.FAIL:
            places.setdefault(verdict.oracle, set()).add(verdict.where)
    return places
