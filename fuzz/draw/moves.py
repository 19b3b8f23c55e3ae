"""The moves from one batch to the next, and the lengths of new requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from fuzz.draw.swarm import Swarm
from repro.cases.case import Request, Setup, accepted_max
from repro.cases.runner_facts import RUNNER_FACTS

# Strategies of a kind that are kept. A night draws ever more different ones: so many hold 97 % of what is asked for
# again, and 4,096, by which it grew, 98 %.
_KEPT = 256
DATA_MAX = 9999  # contents depend on every digit, and four of them are easy to read
SHORT = 8  # tokens
MANY = 106  # request slots
# New requests on pages for each request whose drafts meet the end of a page.
NEAR_ONE_IN = 3

T = TypeVar("T")
Requests = tuple[Request, ...]


def falls_back(setup: Setup) -> bool:
    return RUNNER_FACTS[setup.runner].falls_back and setup.slots > setup.max_bs


# Some fifty of them are asked for a case: Hypothesis checks each one anew where it was not kept.
@lru_cache(maxsize=_KEPT)
def _between(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=_KEPT)
def _among(choices: tuple[T, ...]) -> st.SearchStrategy[T]:
    return st.sampled_from(choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """The material that a move draws the next batch from. limit: seq_len_max(setup), which is worth computing once."""

    draw: st.DrawFn
    setup: Setup
    swarm: Swarm
    limit: int

    def pick(self, choices: Sequence[T]) -> T:
        among: st.SearchStrategy[T] = _among(tuple(choices))
        return self.draw(among)

    def number(self, low: int, high: int) -> int:
        return self.draw(_between(low, high))

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """`count` of the choices, in their order."""
        left = list(range(len(choices)))
        taken = [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]
        return [choices[n] for n in sorted(taken)]


def requests_elsewhere(hand: Hand) -> int:
    """The number of the other rank's requests: none, some, as many as a graph holds, or now and then more."""
    most = hand.setup.slots if hand.swarm.crowded and falls_back(hand.setup) else hand.setup.max_bs
    return hand.pick((0, hand.number(1, hand.setup.max_bs), hand.setup.max_bs, hand.number(1, most)))


def next_batch(hand: Hand, live: Requests) -> Requests:
    """One move of those that are possible now. The first batch may have any size."""
    if not live:
        # The larger of two draws: most of what can go stale is left behind by a large batch.
        return added(hand, (), max(hand.number(1, hand.setup.max_bs), hand.number(1, hand.setup.max_bs)))
    if hand.swarm.crowded and falls_back(hand.setup) and hand.number(0, 7) == 0:
        return added(hand, (), hand.number(hand.setup.max_bs + 1, hand.setup.slots))
    idles = RUNNER_FACTS[hand.setup.runner].idles
    if (hand.swarm.idle or hand.setup.dp_attention) and idles and hand.number(0, 3) == 0:
        return ()
    if len(live) > hand.setup.max_bs:
        return added(hand, (), hand.number(1, hand.setup.max_bs))
    able = [name for name in hand.swarm.moves if POSSIBLE.get(name, _always)(hand, live)]
    batch = MOVE[hand.pick(able) if able else "same"](hand, live)
    if hand.swarm.shuffled and hand.number(0, 3) == 0:
        return tuple(hand.draw(st.permutations(batch)))
    return batch


def grow(hand: Hand, live: Requests) -> Requests:
    """Everyone goes on and others join, at the end as in sglang's merge_batch."""
    return added(hand, continued(hand, live), hand.number(1, hand.setup.max_bs - len(live)))


def shrink(hand: Hand, live: Requests) -> Requests:
    """Some finish, the others go on."""
    return continued(hand, hand.some(live, hand.number(1, len(live) - 1)))


def finish_and_reuse(hand: Hand, live: Requests) -> Requests:
    """Some finish and new requests take over their slots in the same call."""
    staying = hand.some(live, hand.number(0, len(live) - 1))
    freed = [request.slot for request in live if request not in staying]
    return (*continued(hand, staying), *(new(hand, slot) for slot in freed))


def same(hand: Hand, live: Requests) -> Requests:
    """Everyone goes on."""
    return continued(hand, live)


def alike(hand: Hand, live: Requests) -> Requests:
    """A batch that a cache takes for the same if its key leaves something out: other slots, lengths that change places,
    or other contents alone."""
    match hand.number(0, 2):
        case 0:
            return tuple(replace(request, slot=request.slot % hand.setup.slots + 1) for request in live)
        case 1:
            lengths = (*live[1:], live[0])
            return tuple(replace(other, slot=request.slot) for request, other in zip(live, lengths, strict=True))
        case _:
            return tuple(replace(request, data=hand.number(0, DATA_MAX)) for request in live)


def one(hand: Hand, live: Requests) -> Requests:
    """A batch of one: the last of those running, or a newcomer."""
    if hand.number(0, 1):
        return continued(hand, hand.some(live, 1))
    return (new(hand, hand.number(1, hand.setup.slots)),)


def full(hand: Hand, live: Requests) -> Requests:
    """A batch that fills a bucket to its last row."""
    bucket = hand.pick(hand.setup.capture_bs)
    staying = continued(hand, hand.some(live, min(len(live), bucket)))
    return added(hand, staying, bucket - len(staying))


Move = Callable[[Hand, Requests], Requests]
MOVE: dict[str, Move] = {
    "grow": grow,
    "shrink": shrink,
    "finish_and_reuse": finish_and_reuse,
    "same": same,
    "alike": alike,
    "one": one,
    "full": full,
}
# The others are possible with any batch.
POSSIBLE: dict[str, Callable[[Hand, Requests], bool]] = {
    "grow": lambda hand, live: len(live) < hand.setup.max_bs,
    "shrink": lambda hand, live: len(live) > 1,
}


def _always(hand: Hand, live: Requests) -> bool:
    return True


def continued(hand: Hand, staying: Sequence[Request]) -> Requests:
    """The same requests after the tokens that a verify step accepted: 1..num_steps more each."""
    return tuple(
        Request(slot=r.slot, seq_len=_later(hand, r.seq_len), data=r.data, accepted=_accepted(hand)) for r in staying
    )


def _later(hand: Hand, seq_len: int) -> int:
    if hand.swarm.jumps and hand.number(0, 7) == 0:
        return hand.pick((seq_len, _length(hand)))
    return min(hand.limit, seq_len + hand.number(1, hand.setup.num_steps))


def added(hand: Hand, batch: Requests, count: int) -> Requests:
    """The batch and `count` new requests on slots that it does not use."""
    taken = {request.slot for request in batch}
    free = [slot for slot in range(1, hand.setup.slots + 1) if slot not in taken]
    return (*batch, *(new(hand, free.pop(hand.number(0, len(free) - 1))) for _ in range(count)))


def new(hand: Hand, slot: int) -> Request:
    length = _length(hand)
    # Contents of very many only need to differ: each draw is bytes, of which Hypothesis gives an example so many.
    data = slot if hand.setup.slots > MANY else hand.number(0, DATA_MAX)
    return Request(slot=slot, seq_len=length, data=data, accepted=_accepted(hand))


def _accepted(hand: Hand) -> int:
    """The number of accepted drafts, where that matters."""
    most = accepted_max(hand.setup)
    return hand.number(0, most) if most else 0


def _length(hand: Hand) -> int:
    """The length of a new request, 1..limit."""
    limit, page = hand.limit, hand.setup.page_size
    if page > 1 and hand.number(0, NEAR_ONE_IN - 1) == 0:
        return _before_a_page_ends(hand) or limit
    match hand.pick(hand.swarm.lengths):
        case "one":
            return 1
        case "short":
            return hand.number(1, min(SHORT, limit))
        case "page":
            # Around the end of a page, where the drafts of a branch move to pages of their own.
            return min(limit, max(1, hand.number(0, limit // page) * page + hand.number(-1, 1)))
        case "long":
            return hand.number(max(1, limit - SHORT), limit)
        case "limit":
            return limit
        case _:
            return hand.number(1, limit)


def _before_a_page_ends(hand: Hand) -> int:
    """A length from which the drafts reach the end of a page, or nearly; 0 if they reach none."""
    setup, limit = hand.setup, hand.limit
    width = setup.num_draft_tokens if RUNNER_FACTS[setup.runner].speculative else 1
    ends = (limit + width) // setup.page_size
    end = hand.number(min(1, ends), ends) * setup.page_size
    return min(limit, max(1, end - hand.number(0, width))) if end else 0
