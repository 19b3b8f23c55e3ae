"""A case of a server's batches: buckets, slots and context to fit, long prefixes made shorter, and notes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from repro.cases.batches import BadEvidence, Batch, Row
from repro.cases.case import STEPS_MAX, Case, Request, Setup, Step, accepted_max, elsewhere_max, problems, seq_len_max
from repro.cases.json_parts import cut
from repro.cases.options import BATCH_MAX, CONTEXT_MAX, SLOTS_MAX
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.setup import overhang_max

# sglang's batch sizes of graphs, with speculation and without (0.5.23: arg_groups/cuda_graph_hook.py).
_SPECULATIVE = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))
_PLAIN = (1, 2, 4, 8, 12, *range(16, 257, 8))
_NEAR = 64  # tokens before the end of the context within which a request keeps its distance to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes as the server's flags have them; empty and 0: not said. max_bs: the largest bucket."""

    buckets: tuple[int, ...] = ()
    max_bs: int = 0
    context: int = 0


@dataclass(slots=True)
class Notes:
    """Lines on what a case has that the evidence does not say, lacks, or has smaller. Mutable: they grow as it fits."""

    guessed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)

    def about(self) -> dict[str, tuple[str, ...]]:
        """For a seed's `about`."""
        parts = {"guessed": self.guessed, "missing": self.missing, "scaled down": self.scaled}
        return {name: tuple(cut(line, 200) for line in lines) for name, lines in parts.items() if lines}


def fitted(setup: Setup, batches: Sequence[Batch], notes: Notes, sizes: Sizes, longest: int) -> Case:
    """A case of these batches on a setup of this shape. longest: prefixes above so many tokens are made shorter.
    BadEvidence if no case can be made."""
    if len(batches) > STEPS_MAX:
        notes.scaled.append(f"the last {STEPS_MAX} of {len(batches)} batches")
        batches = batches[-STEPS_MAX:]
    slots = _own_slots(batches)
    if not slots:
        slots = _slots(batches)
        notes.guessed.append("request slots: the lowest free one for each new request")
    notes.guessed.append("data: by request")
    setup = replace(setup, capture_bs=_buckets(setup, batches, sizes, notes))
    setup = replace(setup, slots=max(setup.max_bs, max((slot for each in slots for slot in each.values()), default=1)))
    batches, context = _shortened(batches, sizes.context, longest, setup.page_size, notes)
    setup = _roomy(setup, max(row.length for batch in batches for row in batch.rows), context, notes)
    case = Case(setup=setup, steps=tuple(_steps(setup, batches, slots, notes)))
    if texts := problems(case):
        raise BadEvidence(f"{_place(texts[0], batches)}; leave out the batch, or change the flags")
    return case


def _place(text: str, batches: Sequence[Batch]) -> str:
    """The problem, with the place of its batch."""
    words = text.split(maxsplit=2)
    number = words[1].rstrip(":") if words[0] == "step" else ""
    return f"{batches[int(number)].place}: {text}" if number.isdecimal() else text


def _own_slots(batches: Sequence[Batch]) -> list[Mapping[str, int]]:
    """The slots of requests as the server had them; empty where they are not known, or more than a case has."""
    rows = [row for batch in batches for row in batch.rows]
    if not all(0 < row.slot <= SLOTS_MAX for row in rows):
        return []
    return [{row.request: row.slot for row in batch.rows} for batch in batches]


def _slots(batches: Sequence[Batch]) -> list[Mapping[str, int]]:
    """The slot of each request, batch by batch; a request keeps its own until it is seen no more."""
    last = {row.request: number for number, batch in enumerate(batches) for row in batch.rows}
    owned: dict[str, int] = {}
    every: list[Mapping[str, int]] = []
    for number, batch in enumerate(batches):
        owned = {name: slot for name, slot in owned.items() if last[name] >= number}
        for row in batch.rows:
            if row.request not in owned:
                owned[row.request] = min({*range(1, len(owned) + 2)} - {*owned.values()})
        if len(owned) > SLOTS_MAX:
            raise BadEvidence(f"{batch.place}: more than {SLOTS_MAX} requests at a time; leave some out")
        every.append(dict(owned))
    return every


def _buckets(setup: Setup, batches: Sequence[Batch], sizes: Sizes, notes: Notes) -> tuple[int, ...]:
    """The buckets that the batches use."""
    facts = RUNNER_FACTS[setup.runner]
    batch_sizes = [len(batch.rows) for batch in batches if batch.graph] or [1]
    every = sizes.buckets
    if not every:
        usual = _SPECULATIVE if facts.speculative else _PLAIN
        usual = usual if setup.padded else tuple(range(1, BATCH_MAX + 1))
        most = min(BATCH_MAX, sizes.max_bs or BATCH_MAX)
        every = (*(bs for bs in usual if bs < most), most)
        notes.guessed.append("buckets: sglang's usual ones; --cuda-graph-bs names others")
    used = sorted({min((bs for bs in every if bs >= size), default=max(every)) for size in batch_sizes})
    notes.scaled.append(f"buckets: {', '.join(map(str, used))}, the ones that the batches use")
    return tuple(used)


def _shortened(
    batches: Sequence[Batch], context: int, longest: int, page: int, notes: Notes
) -> tuple[Sequence[Batch], int]:
    """The batches with each request's prefix shorter by whole pages, so that growth and places in a page stay; and the
    context in which the longest is as far from the end, if it was near; 0: any that fits."""
    spans: dict[str, tuple[int, int]] = {}
    for row in (row for batch in batches for row in batch.rows):
        low, high = spans.get(row.request, (row.length, row.length))
        spans[row.request] = min(low, row.length), max(high, row.length)
    most = max(high for _, high in spans.values())
    limit = min(longest, most)
    shifts = {
        name: (high - max(limit * high // most, high - low + 1)) // page * page for name, (low, high) in spans.items()
    }
    if any(shifts.values()):
        notes.scaled.append(f"prefixes: up to {most} tokens, here some {limit}, by whole pages (--longest)")
    near = context and context - most <= _NEAR
    if context and not near:
        notes.scaled.append(f"context: {context} tokens, of which no request comes near the end")
    shift = max(shifts[name] for name, (_, high) in spans.items() if high == most)
    short = [
        replace(batch, rows=tuple(replace(row, length=row.length - shifts[row.request]) for row in batch.rows))
        for batch in batches
    ]
    return short, context - shift if near else 0


def _roomy(setup: Setup, most: int, context: int, notes: Notes) -> Setup:
    """The setup with this context; with one in which prefixes of so many tokens fit if it is 0."""
    facts, near = RUNNER_FACTS[setup.runner], replace(setup, context_len=context)
    while context and seq_len_max(near) < most and facts.overhangs and near.overhang < overhang_max(near):
        near = replace(near, overhang=near.overhang + 1)
    if context and seq_len_max(near) >= most:
        if near.overhang:
            notes.guessed.append(f"overhang: {near.overhang} positions of drafts behind the context")
        return near
    notes.guessed.append("context: as short as the prefixes allow")
    setup = replace(setup, context_len=max(setup.context_len, most + 1))
    while (lack := most - seq_len_max(setup)) > 0 and setup.context_len <= CONTEXT_MAX:
        setup = replace(setup, context_len=setup.context_len + lack)
    return setup


def _steps(setup: Setup, batches: Sequence[Batch], slots: Sequence[Mapping[str, int]], notes: Notes) -> list[Step]:
    names = {name: number for number, name in enumerate(dict.fromkeys(r.request for b in batches for r in b.rows))}
    most, lengths, steps = accepted_max(setup), dict[str, int](), []
    if most and any(row.accepted is None for batch in batches for row in batch.rows):
        notes.guessed.append("accepted: by how much a request grew")
    for batch, slot in zip(batches, slots, strict=True):
        requests = []
        for row in batch.rows:
            accepted = _accepted(row, lengths.get(row.request), most, batch.place)
            data = 1 + names[row.request]
            requests.append(Request(slot=slot[row.request], seq_len=row.length, data=data, accepted=accepted))
            lengths[row.request] = row.length
        elsewhere = min(batch.elsewhere, elsewhere_max(setup))
        steps.append(Step(requests=tuple(requests), elsewhere=elsewhere))
    return steps


def _accepted(row: Row, before: int | None, most: int, place: str) -> int:
    """The drafts that were accepted; 0 where the runner is not told of any."""
    if not most:
        return 0
    if row.accepted is None:
        return min(most, max(0, row.length - before - 1)) if before is not None else 0
    if row.accepted > most:
        raise BadEvidence(f"{place}: accepted {row.accepted} is above {most}, the drafts of a chain; correct it")
    return row.accepted
