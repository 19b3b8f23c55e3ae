"""Hypothesis strategies for setups and for sequences of calls; what comes out satisfies problems() == [].

Nothing is filtered: every choice is drawn from what the choices before it leave possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from fuzz.draw.swarm import EVERYTHING, WIDE, Size, Swarm
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import (
    HIDDEN,
    KV_DTYPE_ABOVE,
    KV_DTYPES,
    PAGE_SIZES,
    SPARE_POSITIONS,
    Case,
    Request,
    Setup,
    Step,
    accepted_max,
    overhang_max,
    seq_len_max,
)
from repro.cases.latent import LATENT_DTYPES, LATENT_HIDDEN_SIZES
from repro.cases.runner_facts import LATENT, RUNNER_FACTS, RunnerFacts

HIDDEN_SIZES = (16, 32, 48, 64)
VOCAB_SIZES = (64, 96, 128, 200, 256, 512)
CONTEXT_MIN = 32
ROOM = 8  # tokens of prefix for which every setup leaves room, where its size allows
BUCKETS_MAX, BUCKETS_COMPILED_MAX = 4, 2
DRAFT_TOKENS_MAX = 32
WIDE_TOKENS_MAX = 100
SPARE_SLOTS_MAX = 4
# Shorter than most prefixes, about as long, longer than some.
WINDOWS = (1, 7, 7, 16, 31)
# Below, about and above the size of most scores.
LOGIT_CAPS = (1, 5, 30)
# Strategies of a kind that are kept. A night draws ever more different ones: so many hold 97 % of what is asked for
# again, and 4,096, by which it grew, 98 %.
_KEPT = 256
DATA_MAX = 9999  # contents depend on every digit, and four of them are easy to read
SHORT = 8  # tokens
LIGHT_CONTEXT = 9 * 256  # a page of prefix and one for each of eight branches, of the largest size

T = TypeVar("T")
Requests = tuple[Request, ...]


def setups(runner: str = "draft", backend: str = "triton", swarm: Swarm = EVERYTHING) -> st.SearchStrategy[Setup]:
    """Setups of this runner and backend, within the swarm's size."""
    return _setups(runner, backend, swarm)


def cases(setup: Setup, swarm: Swarm = EVERYTHING) -> st.SearchStrategy[Case]:
    """Cases on this setup: 1 to swarm.calls_max calls, each made from the one before by one of the swarm's moves."""
    return _cases(setup, swarm)


def fullest(setup: Setup) -> Case:
    """The case that a setup begins with: the largest bucket full of the longest requests, twice around a short one; and
    where there are slots for it, a batch that no bucket holds, between two that one does."""
    longest, most = seq_len_max(setup), setup.max_bs
    accepted = accepted_max(setup)

    def batch(count: int, length: int, first: int = 1) -> Step:
        slots = range(first, first + count)
        return Step(requests=tuple(Request(slot=n, seq_len=length, data=n, accepted=accepted) for n in slots))

    beyond = [batch(most + 1, 1)] if _falls_back(setup) else []
    return Case(setup=setup, steps=(batch(most, longest), batch(1, 1, setup.slots), *beyond, batch(most, longest)))


def _falls_back(setup: Setup) -> bool:
    return RUNNER_FACTS[setup.runner].falls_back and setup.slots > setup.max_bs


@st.composite
def _setups(draw: st.DrawFn, runner: str, backend: str, swarm: Swarm) -> Setup:
    domain = RUNNER_FACTS[runner]
    size = replace(swarm.size, context_len=LIGHT_CONTEXT) if domain.light and swarm.paged else swarm.size
    rejecting = swarm.rejecting and domain.rejects
    adapting = swarm.adapting and domain.adapts
    in_chains = rejecting or adapting or not (swarm.branching and domain.speculative and domain.branches)
    branching = domain.trees or not in_chains
    topk = draw(st.integers(2, size.topk)) if branching else 1
    steps_max = min(size.num_steps, domain.num_steps_max) if domain.speculative else 1
    num_steps = draw(st.integers(domain.num_steps_min, steps_max))
    # The tree holds this many candidates besides its root.
    candidates = topk + (num_steps - 1) * topk**2
    tokens_max = min(candidates + 1, WIDE_TOKENS_MAX if size is WIDE else DRAFT_TOKENS_MAX)
    draft_tokens = num_steps + 1 if topk == 1 else draw(st.integers(2, tokens_max))
    capture_bs = draw(_buckets(size.max_bs, swarm.sparse, BUCKETS_COMPILED_MAX if domain.compiled else BUCKETS_MAX))
    heads = draw(st.integers(1, size.num_heads))
    algorithm = draw(st.sampled_from(_algorithms(domain, backend)))
    # flashinfer's kernels are planned without one, whatever the layer says (docs/findings).
    capped = domain.capped and backend == "triton"
    plain = algorithm not in LATENT  # neither windows nor caps are known for latent attention
    hidden_sizes = [n for n in HIDDEN_SIZES if n <= size.hidden_size] if plain else LATENT_HIDDEN_SIZES
    dtypes = [name for name in BACKEND_FACTS[backend].drawn_dtypes if plain or name in LATENT_DTYPES]
    windows = domain.windowed == "target" or BACKEND_FACTS[backend].drafts_in_windows or num_steps == 1
    window = draw(st.sampled_from(WINDOWS)) if domain.windowed and windows and swarm.windowed and plain else 0
    adapting &= plain and not (window and domain.windowed == "draft" and not BACKEND_FACTS[backend].starts_in_windows)
    others = [steps for steps in range(1, min(steps_max + 1, domain.num_steps_max) + 1) if steps != num_steps]
    quantises = domain.quantises and BACKEND_FACTS[backend].quantises and swarm.quantising and plain
    kv_dtype, above = (draw(st.sampled_from(KV_DTYPES)), KV_DTYPE_ABOVE) if quantises else ("", 0)
    page_size, context_len = draw(_pages(runner, topk, num_steps, draft_tokens, size, swarm.paged))
    setup = Setup(
        runner=runner,
        backend=backend,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=draft_tokens,
        capture_bs=capture_bs,
        slots=capture_bs[-1] + draw(st.integers(0, SPARE_SLOTS_MAX)),
        page_size=page_size,
        context_len=context_len,
        vocab_size=draw(st.sampled_from(VOCAB_SIZES)),
        # A Llama configuration wants the hidden size to be a multiple of the number of heads.
        hidden_size=draw(st.sampled_from([n for n in hidden_sizes if n % heads == 0])),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        head_dim=draw(st.sampled_from([n for n in BACKEND_FACTS[backend].drawn_head_dims if n > above])),
        dtype=draw(st.sampled_from(dtypes)),
        # Each split is one more program to interpret in every attention launch.
        kv_splits=draw(st.sampled_from((1, 1, 1, 2))),
        algorithm=algorithm,
        window=window,
        swa=bool(window) and domain.windowed == "target" and draw(st.booleans()),
        logit_cap=draw(st.sampled_from(LOGIT_CAPS)) if capped and swarm.capped and plain else 0,
        returns_hidden=swarm.asking and domain.asks_hidden and draw(st.booleans()),
        overhang=draft_tokens + SPARE_POSITIONS if swarm.overhanging and domain.overhangs else 0,
        padded=not (swarm.unpadded and domain.falls_back),
        mirrored=domain.host_lengths or not swarm.unmirrored,
        mrope=swarm.mrope and domain.mrope and algorithm == "EAGLE3" and draw(st.booleans()),
        rejection=rejecting and algorithm != "EAGLE3",
        deterministic=swarm.deterministic and capped and plain and draw(st.booleans()),
        adaptive=draw(st.sampled_from(others)) if adapting else 0,
        kv_dtype=kv_dtype,
        dp_attention=swarm.ranked and domain.rank_tokens is not None,
    )
    setup = replace(setup, overhang=min(setup.overhang, overhang_max(setup)))
    if not setup.deterministic:
        return setup
    # Windows of decode and drafts are wrong in every release (docs/findings), whatever inference is.
    window, swa = (setup.window, setup.swa) if runner == "verify" else (0, False)
    return replace(setup, window=window, swa=swa, rejection=False)


def _algorithms(domain: RunnerFacts, backend: str) -> tuple[str, ...]:
    """The runner's first algorithm, whose models are the simplest, and as often one of the others."""
    first, *others = (name for name in domain.algorithms if BACKEND_FACTS[backend].latent or name not in LATENT)
    return (*[first] * max(1, len(others)), *others)


@st.composite
def _buckets(draw: st.DrawFn, max_bs: int, sparse: bool, most: int) -> tuple[int, ...]:
    """1 to `most` rising bucket sizes up to max_bs: 1, 2, 3, ... or, where sparse, with at least one size left out."""
    if not sparse:
        return tuple(range(1, draw(st.integers(1, min(most, max_bs))) + 1))
    largest = max(draw(st.integers(2, max_bs)), draw(st.integers(2, max_bs)))
    below = draw(st.permutations(range(1, largest)))
    return (*sorted(below[: draw(st.integers(0, min(most - 1, largest - 2)))]), largest)


@st.composite
def _pages(
    draw: st.DrawFn, runner: str, topk: int, num_steps: int, draft_tokens: int, size: Size, paged: bool
) -> tuple[int, int]:
    """A page size and a context length in which a prefix of one token and its drafts fit."""
    sizes = PAGE_SIZES if paged else (1,)
    needs = {page: _context_min(runner, topk, num_steps, draft_tokens, page) for page in sizes}
    # One-token pages fit in any size: 1 + 8 branches of 6 steps are 49 tokens.
    page_size = draw(st.sampled_from([page for page, need in needs.items() if page == 1 or need <= size.context_len]))
    low = min(size.context_len, max(CONTEXT_MIN, needs[page_size] + ROOM))
    return page_size, draw(st.integers(low, size.context_len))


def _context_min(runner: str, topk: int, num_steps: int, draft_tokens: int, page_size: int) -> int:
    """The smallest context_len that setup_problems() allows."""
    shape = Setup(
        runner=runner,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=draft_tokens,
        capture_bs=(1,),
        slots=1,
        page_size=page_size,
    )
    return RUNNER_FACTS[runner].room(shape, 1)


# Some fifty of them are asked for a case: Hypothesis checks each one anew where it was not kept.
@lru_cache(maxsize=_KEPT)
def _between(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=_KEPT)
def _among(choices: tuple[T, ...]) -> st.SearchStrategy[T]:
    return st.sampled_from(choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """What a move needs to draw the next batch. limit: seq_len_max(setup), which is worth computing once."""

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


@st.composite
def _cases(draw: st.DrawFn, setup: Setup, swarm: Swarm) -> Case:
    hand = Hand(draw=draw, setup=setup, swarm=swarm, limit=seq_len_max(setup))
    # Single calls are rare: stale state needs at least two.
    calls = hand.pick([n for n in (1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6) if n <= swarm.calls_max])
    batch: Requests = ()
    steps = []
    for _ in range(calls):
        batch = next_batch(hand, batch)
        batch = _sampled(hand, batch) if setup.rejection else batch
        layout = hand.number(0, 2) if swarm.relocating and RUNNER_FACTS[setup.runner].relocates else 0
        asks = swarm.asking and RUNNER_FACTS[setup.runner].asks_hidden
        hidden = hand.pick(HIDDEN) if asks else ""
        mirrored, elsewhere = _mirrored(hand), _elsewhere(hand) if setup.dp_attention else 0
        steps.append(Step(requests=batch, mirrored=mirrored, layout=layout, hidden=hidden, elsewhere=elsewhere))
    return Case(setup=setup, steps=tuple(steps))


def _sampled(hand: Hand, batch: Requests) -> Requests:
    """Of random drafts: all requests are greedy, none, or some."""
    match hand.number(0, 2):
        case 0:
            return tuple(replace(request, greedy=hand.number(0, 1) == 1) for request in batch)
        case every:
            return tuple(replace(request, greedy=every == 1) for request in batch)


def _mirrored(hand: Hand) -> bool:
    """Where some calls come without lengths on the host, half of them do."""
    sometimes = hand.swarm.halfway and not RUNNER_FACTS[hand.setup.runner].host_lengths
    return not sometimes or hand.number(0, 1) == 0


def _elsewhere(hand: Hand) -> int:
    """Of the other rank's requests: none, some, as many as a graph holds, or now and then more."""
    most = hand.setup.slots if hand.swarm.crowded and _falls_back(hand.setup) else hand.setup.max_bs
    return hand.pick((0, hand.number(1, hand.setup.max_bs), hand.setup.max_bs, hand.number(1, most)))


def next_batch(hand: Hand, live: Requests) -> Requests:
    """One move of those that are possible now. The first batch may have any size."""
    if not live:
        # The larger of two draws: most of what can go stale is left behind by a large batch.
        return added(hand, (), max(hand.number(1, hand.setup.max_bs), hand.number(1, hand.setup.max_bs)))
    if hand.swarm.crowded and _falls_back(hand.setup) and hand.number(0, 7) == 0:
        return added(hand, (), hand.number(hand.setup.max_bs + 1, hand.setup.slots))
    idles = RUNNER_FACTS[hand.setup.runner].idles
    if hand.swarm.idle and idles and hand.number(0, 3) == 0:
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
    return Request(slot=slot, seq_len=_length(hand), data=hand.number(0, DATA_MAX), accepted=_accepted(hand))


def _accepted(hand: Hand) -> int:
    """How many drafts were accepted, where that matters."""
    most = accepted_max(hand.setup)
    return hand.number(0, most) if most else 0


def _length(hand: Hand) -> int:
    """The length of a new request, 1..limit."""
    limit, page = hand.limit, hand.setup.page_size
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
