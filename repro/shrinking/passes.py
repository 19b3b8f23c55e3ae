"""The ways to make a case smaller. A pass is a generator: it yields candidates, is sent whether each was taken, and
goes on from there. It may propose nonsense: shrink.py runs only what is valid, simpler and new.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from repro.cases.case import Case, Request, Setup, seq_len_max
from repro.cases.options import PAGE_SIZES
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.sort_key import DEFAULTS, MODEL
from repro.shrinking.moves import (
    Moves,
    batches,
    drop,
    each,
    filled,
    first,
    lower,
    one,
    places,
    ranked,
    refit,
    with_steps,
)

Pass = Callable[[Case], Moves]

CONTEXT_MIN = 8


# Passes over the steps


def fewer_steps(case: Case) -> Moves:
    def without(smaller: Case, start: int, stop: int) -> Case:
        return dataclasses.replace(smaller, steps=smaller.steps[:start] + smaller.steps[stop:])

    return (yield from drop(case, len(case.steps), without))


def busy_steps(case: Case) -> Moves:
    """A request in each idle step."""
    for number, step in enumerate(case.steps):
        slots = range(1, case.setup.slots + 1) if not step.requests else ()
        made = (dataclasses.replace(step, requests=(Request(slot=slot, seq_len=1, data=0),)) for slot in slots)
        before, after = case.steps[:number], case.steps[number + 1 :]
        case = yield from first(case, [dataclasses.replace(case, steps=(*before, busy, *after)) for busy in made])
    return case


def plain_steps(case: Case) -> Moves:
    """Lengths on the host and one layout in every step, or in one after the other; layouts numbered from 0."""
    for numbers in (range(len(case.steps)), *([number] for number in range(len(case.steps)))):
        for plain in ({"mirrored": True}, {"layout": 0}, {"hidden": ""}, {"elsewhere": 0}, {"happens": ""}):
            steps = tuple(
                dataclasses.replace(step, **plain) if n in numbers else step for n, step in enumerate(case.steps)
            )
            case = yield from first(case, [dataclasses.replace(case, steps=steps)])
    rank = ranked((step.layout for step in case.steps), 0)
    steps = tuple(dataclasses.replace(step, layout=rank[step.layout]) for step in case.steps)
    return (yield from first(case, [dataclasses.replace(case, steps=steps)]))


def fewer_elsewhere(case: Case) -> Moves:
    """Fewer requests on the other rank, in all steps at once and then in each."""
    busiest = max(step.elsewhere for step in case.steps)
    for numbers in (range(len(case.steps)), *([number] for number in range(len(case.steps)))):

        def put(smaller: Case, most: int, numbers: Sequence[int] = numbers) -> Case:
            steps = (
                dataclasses.replace(step, elsewhere=min(step.elsewhere, most)) if n in numbers else step
                for n, step in enumerate(smaller.steps)
            )
            return dataclasses.replace(smaller, steps=tuple(steps))

        case = yield from lower(case, 0, busiest, put)
    return case


def fewer_rows(case: Case) -> Moves:
    """Leave out the same rows of every batch, so that a smaller batch stays smaller than the one before it."""
    rows = max(len(batch) for batch in batches(case))
    return (
        yield from drop(case, rows, lambda c, start, stop: with_steps(c, [b[:start] + b[stop:] for b in batches(c)]))
    )


def fewer_slots(case: Case) -> Moves:
    """Leave out whole requests, from every step in which they take part."""

    def without(smaller: Case, start: int, stop: int) -> Case:
        slots = sorted({request.slot for _, _, request in places(smaller)})[start:stop]
        return with_steps(smaller, ([r for r in batch if r.slot not in slots] for batch in batches(smaller)))

    return (yield from drop(case, len({request.slot for _, _, request in places(case)}), without))


def fewer_requests(case: Case) -> Moves:
    """Leave out single requests of single batches. The last step first: what fails is mostly seen there."""
    for number in reversed(range(len(case.steps))):

        def without(smaller: Case, start: int, stop: int, number: int = number) -> Case:
            fewer = batches(smaller)
            fewer[number] = fewer[number][:start] + fewer[number][stop:]
            return with_steps(smaller, fewer)

        case = yield from drop(case, len(case.steps[number].requests), without)
    return case


def merged_requests(case: Case) -> Moves:
    """Give a request the length of the one behind it as well, for what depends on the length of a whole batch."""
    longest = seq_len_max(case.setup)
    for number, step in enumerate(case.steps):
        for _ in step.requests[1:]:
            fewer = batches(case)
            *others, left, right = fewer[number]
            merged = dataclasses.replace(left, seq_len=min(left.seq_len + right.seq_len, longest))
            fewer[number] = (*others, merged)
            smaller = with_steps(case, fewer)
            if not (yield smaller):
                break
            case = smaller
    return case


def shorter_lengths(case: Case) -> Moves:
    """All lengths at once: none above a limit, or all by the same amount."""
    lengths = [request.seq_len for _, _, request in places(case)]
    case = yield from lower(case, 1, max(lengths), lambda c, most: each(c, lambda r: {"seq_len": min(r.seq_len, most)}))
    shortest = min(request.seq_len for _, _, request in places(case))
    start = case
    return (
        yield from lower(
            case, 1, shortest, lambda _, least: each(start, lambda r: {"seq_len": r.seq_len - shortest + least})
        )
    )


def fewer_tokens(case: Case) -> Moves:
    """Fewer tokens that requests ask for: no more than a limit, then of one request after the other; and no time
    between arrivals."""
    further = max(request.further for _, _, request in places(case))
    case = yield from lower(case, 0, further, lambda c, most: each(c, lambda r: {"further": min(r.further, most)}))
    for number, row, request in places(case):

        def ask(smaller: Case, count: int, number: int = number, row: int = row) -> Case:
            return one(smaller, number, row, further=count)

        case = yield from lower(case, 0, request.further, ask)
    for number, step in enumerate(case.steps):

        def put(smaller: Case, wait: int, number: int = number) -> Case:
            changed = dataclasses.replace(smaller.steps[number], wait=wait)
            return dataclasses.replace(smaller, steps=(*smaller.steps[:number], changed, *smaller.steps[number + 1 :]))

        case = yield from lower(case, 0, step.wait, put)
    return case


def shorter_requests(case: Case) -> Moves:
    """One request's length after the other. Late, because it asks often: by then few requests are left."""
    for number, row, _ in places(case):
        case = yield from _shorten(case, number, row)
    return case


def _shorten(case: Case, number: int, row: int) -> Moves:
    """One request's length; if nothing shorter will do, then by whole pages, ending at the same place in its page."""

    def put(smaller: Case, length: int) -> Case:
        return one(smaller, number, row, seq_len=length)

    length, page = case.steps[number].requests[row].seq_len, case.setup.page_size
    offset = (length - 1) % page + 1
    shorter = yield from lower(case, 1, length, put)
    if shorter != case:
        return shorter
    return (yield from lower(case, 0, (length - offset) // page, lambda c, pages: put(c, offset + pages * page)))


def smaller_data(case: Case) -> Moves:
    """Data feeds a generator, so its size says nothing of what it does: only a few small numbers are tried."""
    rank = ranked((request.data for _, _, request in places(case)), 0)
    case = yield from first(case, [each(case, lambda _: {"data": 0}), each(case, lambda r: {"data": rank[r.data]})])
    for number, row, request in places(case):
        small = sorted({0, 1, 2, 3, request.data % 16, request.data % 256, request.data % 65536})
        case = yield from first(case, [one(case, number, row, data=data) for data in small if data < request.data])
    return case


def fewer_accepted(case: Case) -> Moves:
    """No draft accepted anywhere, or in one request after the other; no request greedy."""
    case = yield from first(case, [each(case, lambda _: {"greedy": False})])
    case = yield from first(case, [each(case, lambda _: {"accepted": 0})])
    for number, row, request in places(case):

        def put(smaller: Case, count: int, number: int = number, row: int = row) -> Case:
            return one(smaller, number, row, accepted=count)

        case = yield from lower(case, 0, request.accepted, put)
    return case


def lower_slots(case: Case) -> Moves:
    """Number the slots from 1: in each step anew, else keeping who is who; and order the rows by slot."""
    by_row = with_steps(
        case, ([dataclasses.replace(r, slot=row + 1) for row, r in enumerate(batch)] for batch in batches(case))
    )
    met = {slot: n + 1 for n, slot in enumerate(dict.fromkeys(r.slot for _, _, r in places(case)))}
    rank = ranked(met, 1)
    case = yield from first(
        case, [by_row, each(case, lambda r: {"slot": met[r.slot]}), each(case, lambda r: {"slot": rank[r.slot]})]
    )
    case = yield from first(case, [with_steps(case, (sorted(b, key=lambda r: r.slot) for b in batches(case)))])
    for number, row, request in places(case):
        low = range(1, min(request.slot, len(met) + 1))
        case = yield from first(case, [one(case, number, row, slot=slot) for slot in low])
    return case


# Passes over the setup


def smallest_setup(case: Case) -> Moves:
    """Everything at once: where the setup does not matter, this saves capturing once per number."""
    setup = case.setup
    model = {name: DEFAULTS[name] for group in MODEL for name in group}
    rows = max(step.busiest for step in case.steps)
    steps = RUNNER_FACTS[setup.runner].num_steps_min
    # The prefix is followed by two drafts.
    context = max(CONTEXT_MIN, 2 + max(request.seq_len for _, _, request in places(case)))

    def small(bs: int, context_len: int) -> Case:
        numbers = {"topk": 1, "num_steps": steps, "page_size": 1, "slots": bs, "kv_splits": 1}
        return refit(case, capture_bs=(bs,), context_len=context_len, **numbers, **model)

    largest = setup.bucket(min(rows, setup.max_bs))
    return (yield from first(case, [small(rows, context), small(largest, context), small(largest, setup.context_len)]))


def fewer_rows_and_buckets(case: Case) -> Moves:
    """Leave out rows of every batch together with that many of every bucket, so that padding stays padding."""

    def put(smaller: Case, largest: int, change: Callable[..., Case] = refit) -> Case:
        rows = smaller.setup.max_bs - largest
        buckets = tuple(bs - rows for bs in smaller.setup.capture_bs if bs > rows)
        kept = with_steps(smaller, (batch[: max(1, len(batch) - rows)] if batch else () for batch in batches(smaller)))
        return change(kept, capture_bs=buckets)

    case = yield from lower(case, 1, case.setup.max_bs, put)
    if not _lengths_matter(case):
        return case
    return (yield from lower(case, 1, case.setup.max_bs, lambda c, largest: put(c, largest, filled)))


def fewer_branches(case: Case) -> Moves:
    """Lower topk, if need be with longer prefixes instead."""
    case = yield from lower(case, 1, case.setup.topk, lambda c, topk: refit(c, topk=topk))
    if not _lengths_matter(case):
        return case
    return (yield from lower(case, 1, case.setup.topk, lambda c, topk: filled(c, topk=topk)))


def _lengths_matter(case: Case) -> bool:
    """Lengths were lowered before, so what is still above one token has a reason."""
    return any(request.seq_len > 1 for _, _, request in places(case))


def fewer_buckets(case: Case) -> Moves:
    """Only the buckets that are used, or the largest alone; then each one by itself; then each one smaller."""
    fitting = [step.busiest for step in case.steps if step.busiest <= case.setup.max_bs]
    used = tuple(sorted({case.setup.bucket(batch) for batch in fitting})) or case.setup.capture_bs
    case = yield from first(case, [refit(case, capture_bs=used[-1:]), refit(case, capture_bs=used)])
    case = yield from drop(
        case,
        len(case.setup.capture_bs),
        lambda c, start, stop: refit(c, capture_bs=c.setup.capture_bs[:start] + c.setup.capture_bs[stop:]),
    )
    for place in range(len(case.setup.capture_bs)):

        def put(smaller: Case, bs: int, place: int = place) -> Case:
            buckets = smaller.setup.capture_bs
            return refit(smaller, capture_bs=(*buckets[:place], bs, *buckets[place + 1 :]))

        below = case.setup.capture_bs[place - 1] if place else 0
        case = yield from lower(case, below + 1, case.setup.capture_bs[place], put)
    return case


def _number(name: str, low: Callable[[Setup], int]) -> Pass:
    """The pass that brings one number of the setup down."""

    def begin(case: Case) -> Moves:
        high = getattr(case.setup, name)
        return (yield from lower(case, low(case.setup), high, lambda c, value: refit(c, **{name: value})))

    return begin


def within_context(case: Case) -> Moves:
    """Nothing behind the context: one that is as much longer, or less, with every request as long as it allows."""
    setup = case.setup
    if not setup.overhang:
        return case
    lengths = range(setup.context_len, setup.context_len + setup.overhang + 1)
    full = (filled(case, overhang=0, context_len=length) for length in lengths)
    return (yield from first(case, itertools.chain([refit(case, overhang=0, context_len=lengths[-1])], full)))


def smaller_pages(case: Case) -> Moves:
    sizes = [size for size in PAGE_SIZES if size < case.setup.page_size]
    return (yield from first(case, [refit(case, page_size=size) for size in sizes]))


def plain_model(case: Case) -> Moves:
    for group in MODEL:
        case = yield from first(case, [refit(case, **{name: DEFAULTS[name] for name in group})])
    return case


# In this order, again and again until none helps. Changed steps are replayed on captured graphs, while a changed setup
# has to be captured again, which costs ten times as much: so the steps come first.
PASSES: tuple[Pass, ...] = (
    fewer_steps,
    fewer_rows,
    fewer_slots,
    fewer_requests,
    merged_requests,
    shorter_lengths,
    fewer_tokens,
    fewer_accepted,
    busy_steps,
    plain_steps,
    fewer_elsewhere,
    smaller_data,
    lower_slots,
    within_context,
    smallest_setup,
    fewer_rows_and_buckets,
    fewer_buckets,
    fewer_branches,
    _number("num_steps", lambda setup: RUNNER_FACTS[setup.runner].num_steps_min),
    _number("num_draft_tokens", lambda setup: 2),
    _number("adaptive", lambda setup: 1 if setup.adaptive else 0),
    smaller_pages,
    _number("context_len", lambda setup: CONTEXT_MIN),
    _number("slots", lambda setup: setup.max_bs),
    _number("kv_splits", lambda setup: 1),
    plain_model,
    shorter_requests,
)
