"""Two campaigns that find one bug end in the same case, whatever they began with."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.cases.case import Case, Request, Setup, Step, problems
from repro.cases.codec import Seed, dumps
from repro.cases.sort_key import sort_key
from repro.shrinking.shrink import shrink

STARTS = 12


def drawn(chance: random.Random) -> Case:
    """A valid case of the draft-extend runner, larger than any bug below needs."""
    while True:
        steps = chance.randint(1, 4)
        setup = Setup(
            runner="draft_extend",
            topk=1,
            num_steps=steps,
            num_draft_tokens=steps + 1,
            capture_bs=tuple(sorted(chance.sample(range(1, 9), chance.randint(1, 3)))),
            slots=chance.randint(8, 20),
            page_size=chance.choice((1, 2, 4)),
            context_len=chance.choice((32, 48, 64)),
            hidden_size=chance.choice((16, 32)),
            num_heads=chance.choice((1, 2)),
            num_kv_heads=1,
        )
        batches = []
        for _ in range(chance.randint(3, 6)):
            slots = chance.sample(range(1, setup.slots + 1), chance.randint(1, setup.max_bs))
            batches.append(tuple(request(chance, setup, slot) for slot in slots))
        case = Case(setup=setup, steps=tuple(Step(requests=batch) for batch in batches))
        if not problems(case):
            return case


def request(chance: random.Random, setup: Setup, slot: int) -> Request:
    length, accepted = chance.randint(1, 20), chance.randint(0, setup.num_steps)
    return Request(slot=slot, seq_len=length, data=chance.randrange(2**20), accepted=accepted)


def stale_padding(case: Case) -> bool:
    """A batch leaves rows that a later, smaller one in the same bucket does not fill."""
    sizes = [len(step.requests) for step in case.steps]
    buckets = [case.setup.bucket(size) for size in sizes]
    return any(buckets[i] == buckets[j] and sizes[i] > sizes[j] for j in range(len(sizes)) for i in range(j))


def long_and_accepted(case: Case) -> bool:
    return any(r.seq_len >= 5 for s in case.steps for r in s.requests) and any(
        r.accepted for s in case.steps for r in s.requests
    )


def same_slot_twice(case: Case) -> bool:
    """A request that comes again, longer."""
    seen: dict[int, int] = {}
    for step in case.steps:
        for request in step.requests:
            if request.seq_len > seen.get(request.slot, 1 << 20):
                return True
            seen[request.slot] = request.seq_len
    return False


@pytest.mark.parametrize("fails", [stale_padding, long_and_accepted, same_slot_twice])
def test_every_start_ends_in_the_same_file(fails: Callable[[Case], bool], tmp_path: Path) -> None:
    chance, texts = random.Random(7), set()
    for _ in range(STARTS):
        case = next(case for case in iter(lambda: drawn(chance), None) if fails(case))
        small = shrink(case, fails, runs_max=3000, seconds_max=60, on_better=lambda better: None)
        texts.add(dumps(Seed(case=small)))
    assert len(texts) == 1, "\n".join(sorted(texts))


def test_what_was_accepted_is_part_of_what_is_simpler() -> None:
    case = drawn(random.Random(1))
    step = case.steps[0]
    more = Step(requests=(Request(slot=step.requests[0].slot, seq_len=step.requests[0].seq_len, data=0, accepted=1),))
    none = Step(requests=(Request(slot=step.requests[0].slot, seq_len=step.requests[0].seq_len, data=0),))
    assert sort_key(Case(setup=case.setup, steps=(none,))) < sort_key(Case(setup=case.setup, steps=(more,)))
