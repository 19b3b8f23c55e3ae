"""Moves from case to case: the searches that all passes are made of, and the changes they propose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from repro.cases.case import Case, Request, accepted_max, elsewhere_max, seq_len_max, setup_problems
from repro.cases.runner_facts import WITHOUT_STEPS

# A generator of candidates, which is sent whether each was taken. It returns the case that it arrived at.
Moves = Generator[Case, bool, Case]


def lower(case: Case, low: int, high: int, put: Callable[[Case, int], Case]) -> Moves:
    """Bring one number down from `high`: to `low` at once if that will do, else as far as halving finds."""
    if high <= low:
        return case
    smallest = put(case, low)
    if (yield smallest):
        return smallest
    while high - low > 1:
        middle = (low + high) // 2
        smaller = put(case, middle)
        if (yield smaller):
            case, high = smaller, middle
        else:
            low = middle
    return case


def drop(case: Case, count: int, without: Callable[[Case, int, int], Case]) -> Moves:
    """Leave out items start..stop of `count`: halves first, then quarters, down to single ones."""
    size = count // 2
    while size:
        start = 0
        while start < count:
            stop = min(start + size, count)
            smaller = without(case, start, stop)
            if (yield smaller):
                case, count = smaller, count - (stop - start)
            else:
                start = stop
        size //= 2
    return case


def first(case: Case, candidates: Iterable[Case]) -> Moves:
    """Take the first candidate that will do."""
    for candidate in candidates:
        if (yield candidate):
            return candidate
    return case


def with_steps(case: Case, batches: Iterable[Iterable[Request]]) -> Case:
    """The case with these batches, one for each of its steps; a batch that becomes empty is no step."""
    made = [
        (step, dataclasses.replace(step, requests=tuple(batch)))
        for step, batch in zip(case.steps, batches, strict=True)
    ]
    return dataclasses.replace(case, steps=tuple(new for old, new in made if new.requests or not old.requests))


def batches(case: Case) -> list[tuple[Request, ...]]:
    return [step.requests for step in case.steps]


def each(case: Case, change: Callable[[Request], Mapping[str, Any]]) -> Case:
    """The case with every request changed in the fields that `change` returns."""
    return with_steps(case, ([dataclasses.replace(r, **change(r)) for r in batch] for batch in batches(case)))


def one(case: Case, number: int, row: int, **changes: Any) -> Case:
    """The case with one request changed."""
    changed = [list(batch) for batch in batches(case)]
    changed[number][row] = dataclasses.replace(changed[number][row], **changes)
    return with_steps(case, changed)


def places(case: Case) -> list[tuple[int, int, Request]]:
    """Every request with the number of its step and its row."""
    return [(n, row, request) for n, batch in enumerate(batches(case)) for row, request in enumerate(batch)]


def ranked(values: Iterable[int], first: int) -> dict[int, int]:
    """The values numbered from `first`, in their order."""
    return {value: first + rank for rank, value in enumerate(sorted(set(values)))}


def refit(case: Case, **changes: Any) -> Case:
    """The case on a changed setup, with everything that depends on it made to fit again where that is possible."""
    setup = dataclasses.replace(case.setup, **changes)
    tree = setup.topk + (setup.num_steps - 1) * setup.topk**2
    drafts = setup.num_steps + 1 if setup.topk == 1 else min(setup.num_draft_tokens, tree + 1)
    drafts = setup.num_draft_tokens if setup.algorithm in WITHOUT_STEPS else drafts
    # Slots that were just enough stay just enough, which saves capturing once more for them alone.
    slots = setup.max_bs if case.setup.slots == case.setup.max_bs and setup.capture_bs else setup.slots
    # A number of steps that changes stays one that does.
    adaptive = setup.adaptive + 1 if setup.adaptive == setup.num_steps else setup.adaptive
    setup = dataclasses.replace(setup, num_draft_tokens=drafts, slots=slots, adaptive=adaptive)
    case = dataclasses.replace(case, setup=setup)
    if setup_problems(setup):
        return case
    case = with_steps(case, (batch[: setup.max_bs] for batch in batches(case)))
    steps = (dataclasses.replace(step, elsewhere=min(step.elsewhere, elsewhere_max(setup))) for step in case.steps)
    case = dataclasses.replace(case, steps=tuple(steps))
    longest, most = seq_len_max(setup), accepted_max(setup)
    case = each(case, lambda r: {"seq_len": min(r.seq_len, longest), "accepted": min(r.accepted, most)})
    case = each(
        case, lambda r: {"greedy": r.greedy and setup.rejection, "further": min(r.further, longest - r.seq_len)}
    )
    if any(request.slot > setup.slots for _, _, request in places(case)):
        rank = ranked((request.slot for _, _, request in places(case)), 1)
        case = each(case, lambda request: {"slot": rank[request.slot]})
    return case


def filled(case: Case, **changes: Any) -> Case:
    """The refit case with every request as long as the setup allows: fewer branches may fail with longer prefixes
    only."""
    case = refit(case, **changes)
    if setup_problems(case.setup):
        return case
    longest = seq_len_max(case.setup)
    return each(case, lambda _: {"seq_len": longest})
