"""Cases around a stored one: the same setup with up to two options changed, and its steps with up to four changes.

Nothing is filtered: a setup changes in options whose other value is valid there, and a change of the steps that does
not fit is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.draw import arrivals
from fuzz.draw.aim import Aim, plain
from fuzz.draw.moves import DATA_MAX, Hand, Requests, next_batch
from fuzz.draw.states import OF_SETUPS, STATES, plainest
from fuzz.draw.strategies import REQUESTS_MAX
from fuzz.draw.swarm import EVERYTHING
from repro.cases.case import HIDDEN, STEPS_MAX, Case, Setup, Step, accepted_max, elsewhere_max, problems, seq_len_max
from repro.cases.codec import read
from repro.cases.options import OPTION
from repro.cases.runner_facts import RUNNER_FACTS
from repro.shrinking.moves import refit

# How often a setup has so many options changed, and a case so many changes of its steps.
OPTIONS_CHANGED = (0, 1, 1, 1, 2)
STEPS_CHANGED = (1, 1, 2, 2, 3, 4)
_NAMED = ("runner", "backend")


@lru_cache(maxsize=8)
def stored(path: str) -> Case:
    """The case of a seed file. BadSeed, OSError."""
    return read(Path(path)).case


@lru_cache(maxsize=64)
def based(aim: Aim) -> Case:
    """The stored case with what else the aim asks for; it may be none that is valid. BadSeed, OSError."""
    case = stored(aim.near)
    buckets = {"capture_bs": (*(bs for bs in case.setup.capture_bs if bs < aim.max_bs), aim.max_bs)}
    changes = {**dict(aim.fixed), **(buckets if aim.max_bs else {})}
    case = refit(case, **changes) if changes else case
    for field in aim.having:
        others = (refit(case, **{field: value}) for value in OPTION[field].drawn if value != plain(field))
        if getattr(case.setup, field) == plain(field):
            case = next((other for other in others if not problems(other)), case)
    return case


def possible_near(aim: Aim, states: frozenset[str]) -> frozenset[str]:
    """The states of replays, among these, that setups with few options changed can be in."""
    case = based(aim)
    setups = [case.setup, *(other.setup for other in neighbours(case, kept(aim)))]
    return frozenset(
        name
        for name in states
        if name not in OF_SETUPS or any(STATES[name].holds(setup, None, plainest(setup)) for setup in setups)
    )


def kept(aim: Aim) -> frozenset[str]:
    """The fields that stay as the aim has them."""
    return frozenset({*dict(aim.fixed), *aim.having, *(["capture_bs"] if aim.max_bs else [])})


@lru_cache(maxsize=256)
def neighbours(case: Case, kept: frozenset[str]) -> tuple[Case, ...]:
    """The case with one option at another value that is drawn, or with other buckets. kept: fields that stay."""
    setup = case.setup
    fields = [(option.field, value) for option in OPTION.values() for value in dict.fromkeys(option.drawn)]
    fields += [(field, plain(field)) for field, option in OPTION.items() if option.drawn]
    fields += [("capture_bs", buckets) for buckets in _buckets(setup)]
    changed = (refit(case, **{field: value}) for field, value in fields if field not in (*_NAMED, *kept))
    return tuple(dict.fromkeys(new for new in changed if new != case and not problems(new)))


def _buckets(setup: Setup) -> list[tuple[int, ...]]:
    """Without one of the buckets, and with one more between them."""
    every = setup.capture_bs
    fewer = [tuple(bs for bs in every if bs != left_out) for left_out in every if len(every) > 1]
    between = [bs for bs in range(1, setup.max_bs) if bs not in every]
    return [*fewer, *(tuple(sorted((*every, bs))) for bs in between[:4])]


@st.composite
def near_setups(draw: st.DrawFn, aim: Aim) -> Case:
    """The case on a setup with some options changed that may be."""
    case = based(aim)
    for _ in range(draw(st.sampled_from(OPTIONS_CHANGED))):
        others = neighbours(case, kept(aim))
        case = draw(st.sampled_from(others)) if others else case
    return case


@st.composite
def near_cases(draw: st.DrawFn, case: Case) -> Case:
    """Cases on the very setup of this one, whose steps are its own with some changes."""
    hand = Hand(draw=draw, setup=case.setup, swarm=EVERYTHING, limit=seq_len_max(case.setup))
    for _ in range(min(hand.pick(STEPS_CHANGED), max(1, REQUESTS_MAX // case.setup.slots))):
        changed = replace(case, steps=tuple(hand.pick(CHANGES)(hand, case.steps)))
        case = case if problems(changed) else changed
    return case


Steps = Sequence[Step]


def _left_out(hand: Hand, steps: Steps) -> Steps:
    number = hand.number(0, len(steps) - 1)
    return [*steps[:number], *steps[number + 1 :]]


def _again(hand: Hand, steps: Steps) -> Steps:
    """A step once more, somewhere behind it."""
    number = hand.number(0, len(steps) - 1)
    place = hand.number(number, len(steps))
    return [*steps[:place], steps[number], *steps[place:]][:STEPS_MAX]


def _another(hand: Hand, steps: Steps) -> Steps:
    """A new step behind one of them."""
    number = hand.number(0, len(steps) - 1)
    if RUNNER_FACTS[hand.setup.runner].serves:
        new = replace(steps[number], wait=hand.pick(arrivals.WAITS))
    else:
        new = replace(steps[number], requests=next_batch(hand, steps[number].requests))
    return [*steps[: number + 1], new, *steps[number + 1 :]][:STEPS_MAX]


def _moved_on(hand: Hand, steps: Steps) -> Steps:
    """The batch of a step becomes the next one of those before it."""
    number = hand.number(0, len(steps) - 1)
    before = steps[number - 1].requests if number else ()
    return _with(steps, number, requests=next_batch(hand, before))


def _requests(hand: Hand, steps: Steps) -> Steps:
    """One request has another length, slot, content or number of accepted drafts."""
    busy = [number for number, step in enumerate(steps) if step.requests]
    number = hand.pick(busy)
    batch = steps[number].requests
    row = hand.number(0, len(batch) - 1)
    return _with(steps, number, requests=(*batch[:row], _request(hand, batch, row), *batch[row + 1 :]))


def _request(hand: Hand, batch: Requests, row: int) -> Any:
    request = batch[row]
    match hand.number(0, 3):
        case 0:
            closer = (
                request.seq_len - 1,
                request.seq_len + 1,
                hand.limit - request.further,
                hand.number(1, hand.limit),
            )
            length = min(hand.limit - request.further, max(1, hand.pick(closer)))
            return replace(request, seq_len=length)
        case 1:
            taken = {each.slot for each in batch}
            free = [slot for slot in range(1, hand.setup.slots + 1) if slot not in taken]
            return replace(request, slot=hand.pick(free) if free else request.slot)
        case 2:
            return replace(request, data=hand.number(0, DATA_MAX))
        case _:
            return replace(request, accepted=hand.number(0, accepted_max(hand.setup)))


def _fewer(hand: Hand, steps: Steps) -> Steps:
    """One request is not in its step."""
    number = hand.number(0, len(steps) - 1)
    batch = steps[number].requests
    row = hand.number(0, max(0, len(batch) - 1))
    return _with(steps, number, requests=(*batch[:row], *batch[row + 1 :]))


def _asked(hand: Hand, steps: Steps) -> Steps:
    """A step asks for something else besides its requests."""
    number = hand.number(0, len(steps) - 1)
    match hand.number(0, 3):
        case 0:
            return _with(steps, number, elsewhere=hand.number(0, elsewhere_max(hand.setup)))
        case 1:
            return _with(steps, number, mirrored=not steps[number].mirrored)
        case 2:
            return _with(steps, number, layout=hand.number(0, 2))
        case _:
            return _with(steps, number, hidden=hand.pick(HIDDEN))


def _with(steps: Steps, number: int, **changes: Any) -> Steps:
    return [*steps[:number], replace(steps[number], **changes), *steps[number + 1 :]]


CHANGES: tuple[Callable[[Hand, Steps], Steps], ...] = (
    *(_left_out, _again, _another, _moved_on),
    *(_requests, _requests, _requests, _fewer, _asked),
)
